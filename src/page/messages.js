// Decodes what the server sends (src/view/messages.rs) and what a report holds.
'use strict';

const messages = (() => {
  /** Reads little-endian values one after the other. */
  class Reader {
    constructor(bytes) {
      this.bytes = bytes;
      this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      this.at = 0;
    }
    u8() { return this.view.getUint8(this.at++); }
    u16() { this.at += 2; return this.view.getUint16(this.at - 2, true); }
    u32() { this.at += 4; return this.view.getUint32(this.at - 4, true); }
    f32() { this.at += 4; return this.view.getFloat32(this.at - 4, true); }
    /** A copy, which is aligned as typed arrays need it. */
    take(length) {
      if (this.at + length > this.bytes.length) throw new Error('a message is cut off');
      this.at += length;
      return this.bytes.slice(this.at - length, this.at);
    }
    i16s(count) { return new Int16Array(this.take(2 * count).buffer); }
    f32s(count) { return new Float32Array(this.take(4 * count).buffer); }
    rest() { return this.take(this.bytes.length - this.at); }
  }

  const text = (bytes) => new TextDecoder().decode(bytes);

  const readers = {
    1: (r) => ({ kind: 'hello', value: JSON.parse(text(r.rest())) }),
    2: (r) => ({ kind: 'state', value: JSON.parse(text(r.rest())) }),
    3: (r) => {
      const [number, width, height, count] = [r.u32(), r.u32(), r.u32(), r.u32()];
      const matches = new Uint16Array(r.take(8 * count).buffer);
      return { kind: 'image', number, width, height, matches, jpeg: r.rest() };
    },
    4: (r) => {
      const [map, count, loopCount] = [r.u32(), r.u32(), r.u32()];
      const keyframes = new Map();
      for (let k = 0; k < count; k++) {
        const [id, submap] = [r.u32(), r.u32()];
        keyframes.set(id, { submap, pose: r.f32s(8) });
      }
      const loops = [];
      for (let k = 0; k < loopCount; k++) loops.push([r.u32(), r.u32()]);
      return { kind: 'graph', map, keyframes, loops };
    },
    5: (r) => {
      const [id, revision, extent, count] = [r.u32(), r.u32(), r.f32(), r.u32()];
      return { kind: 'cloud', id, revision, extent, count, positions: r.i16s(3 * count), colors: r.take(3 * count) };
    },
    6: (r) => {
      const [start, count] = [r.u32(), r.u32()];
      return { kind: 'trail', start, count, positions: r.f32s(3 * count), flags: r.take(count) };
    },
    7: (r) => {
      const about = JSON.parse(text(r.take(r.u32())));
      return { kind: 'grid', ...about, png: r.rest() };
    },
    8: (r) => ({ kind: 'end', value: JSON.parse(text(r.rest())) }),
  };

  /** Cuts a stream of bytes into messages. */
  class Splitter {
    constructor() { this.bytes = new Uint8Array(0); }
    /** Adds bytes; returns the messages that are complete. Kinds that this page does not know are skipped. */
    add(chunk) {
      const joined = new Uint8Array(this.bytes.length + chunk.length);
      joined.set(this.bytes);
      joined.set(chunk, this.bytes.length);
      const found = [];
      let at = 0;
      while (joined.length - at >= 5) {
        const length = new DataView(joined.buffer, at + 1, 4).getUint32(0, true);
        if (length > 1 << 26) throw new Error('this is not a stream of mast3r-slam');
        if (joined.length - at < 5 + length) break;
        const read = readers[joined[at]];
        if (read) found.push(read(new Reader(joined.subarray(at + 5, at + 5 + length))));
        at += 5 + length;
      }
      this.bytes = joined.slice(at);
      return found;
    }
  }

  return { Splitter };
})();
