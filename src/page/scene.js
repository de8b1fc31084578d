// Draws a map with WebGL: the keyframes' clouds, the camera's way, keyframes, loops and a grid. A mouse or fingers turn,
// move and zoom it: drag, drag with the right button (or two fingers), wheel (or pinch); a double click looks at
// everything again.
'use strict';

class MapScene {
  static COLORS = {
    trail: [0.18, 0.55, 1.0, 1], lost: [0.94, 0.27, 0.27, 1], keyframe: [0.62, 0.69, 0.8, 0.75], loop: [0.98, 0.55, 0.15, 1],
    camera: [0.2, 0.83, 0.4, 1], grid: [0.5, 0.55, 0.62, 0.35],
  };

  /** Draws on `canvas`; `embedded` in a page that scrolls, the wheel zooms only after the map was touched. */
  constructor(canvas, embedded = false) {
    this.canvas = canvas;
    this.embedded = embedded;
    this.draw = this.draw.bind(this);
    const gl = twgl.getContext(canvas, { antialias: true, alpha: false, preserveDrawingBuffer: true });
    if (!gl) throw new Error('this browser has no WebGL, which draws the map');
    this.gl = gl;
    this.points = twgl.createProgramInfo(gl, [MapScene.POINT_SHADER, MapScene.COLOR_SHADER]);
    this.lines = twgl.createProgramInfo(gl, [MapScene.LINE_SHADER, MapScene.COLOR_SHADER]);
    this.textured = twgl.createProgramInfo(gl, [MapScene.GRID_SHADER, MapScene.TEXTURE_SHADER]);
    this.clouds = new Map();
    this.wire = twgl.createBufferInfoFromArrays(gl, { position: { numComponents: 3, data: MapScene.WIRE }, color: { numComponents: 3, type: Uint8Array, normalize: true, data: new Uint8Array(MapScene.WIRE.length).fill(255) } });
    this.forget();
    this.listen();
    canvas.addEventListener('webglcontextlost', (event) => { event.preventDefault(); location.reload(); });
    new ResizeObserver(() => this.change()).observe(canvas);
  }

  /** Forgets the map. */
  forget() {
    for (const id of [...this.clouds.keys()]) this.dropCloud(id);
    this.graph = { keyframes: new Map(), loops: [] };
    this.trail = { positions: new Float32Array(0), flags: new Uint8Array(0), count: 0 };
    this.camera = null;
    this.submap = null;
    this.dropLines('trail'); this.dropLines('loops');
    this.grid = null;
    this.look = { target: [0, 0, 0], distance: 4, yaw: 0.6, pitch: 0.75, touched: false };
    this.up = [0, -1, 0]; this.ahead = [0, 0, 1];
    this.change();
  }

  /** Number of points on the screen's map. */
  get pointCount() {
    let count = 0;
    for (const [id, cloud] of this.clouds) if (this.shown(id)) count += cloud.count;
    return count;
  }

  shown(id) {
    const keyframe = this.graph.keyframes.get(id);
    return keyframe !== undefined && (this.submap === null || keyframe.submap === this.submap);
  }

  setCloud(message) {
    this.dropCloud(message.id);
    if (message.count > 0) {
      const buffers = twgl.createBufferInfoFromArrays(this.gl, {
        position: { numComponents: 3, type: Int16Array, normalize: true, data: message.positions },
        color: { numComponents: 3, type: Uint8Array, normalize: true, data: message.colors },
      });
      this.clouds.set(message.id, { buffers, extent: message.extent, count: message.count, positions: message.positions });
    }
    this.fit();
  }

  dropCloud(id) {
    const cloud = this.clouds.get(id);
    if (!cloud) return;
    for (const attribute of Object.values(cloud.buffers.attribs)) this.gl.deleteBuffer(attribute.buffer);
    this.clouds.delete(id);
  }

  setGraph(graph) {
    this.graph = graph;
    for (const id of [...this.clouds.keys()]) if (!graph.keyframes.has(id)) this.dropCloud(id);
    this.drawLoops();
    this.orient();
    this.fit();
  }

  drawLoops() {
    const ends = [];
    for (const [i, j] of this.graph.loops) {
      if (this.shown(i) && this.shown(j)) for (const id of [i, j]) ends.push(...this.graph.keyframes.get(id).pose.slice(0, 3));
    }
    this.setLines('loops', ends, MapScene.COLORS.loop);
  }

  /** Replaces the positions from `start` on. */
  setTrail({ start, count, positions, flags }) {
    const old = this.trail;
    const keep = Math.min(start, old.count);
    const all = new Float32Array(3 * (keep + count));
    all.set(old.positions.subarray(0, 3 * keep));
    all.set(positions, 3 * keep);
    const marks = new Uint8Array(keep + count);
    marks.set(old.flags.subarray(0, keep));
    marks.set(flags, keep);
    this.trail = { positions: all, flags: marks, count: keep + count };
    const ends = [], colors = [];
    for (let k = 1; k < this.trail.count; k++) {
      if (marks[k] & 2) continue;
      const color = (marks[k] & 1 ? MapScene.COLORS.lost : MapScene.COLORS.trail).map((v) => 255 * v);
      for (const end of [k - 1, k]) {
        ends.push(all[3 * end], all[3 * end + 1], all[3 * end + 2]);
        colors.push(color[0], color[1], color[2]);
      }
    }
    this.setLines('trail', ends, null, colors);
    this.fit();
  }

  setLines(name, ends, color, colors) {
    this.dropLines(name);
    if (ends.length === 0) return this.change();
    const rgb = colors ?? Array.from({ length: ends.length }, (_, k) => 255 * color[k % 3]);
    this[`${name}Buffers`] = twgl.createBufferInfoFromArrays(this.gl, {
      position: { numComponents: 3, data: new Float32Array(ends) },
      color: { numComponents: 3, type: Uint8Array, normalize: true, data: new Uint8Array(rgb) },
    });
    this.change();
  }

  dropLines(name) {
    const buffers = this[`${name}Buffers`];
    if (buffers) for (const attribute of Object.values(buffers.attribs)) this.gl.deleteBuffer(attribute.buffer);
    this[`${name}Buffers`] = null;
  }

  /** Where the camera is: position, quaternion, scale. */
  setCamera(pose, submap) {
    this.camera = pose;
    if (this.submap !== submap) {
      this.submap = submap;
      this.drawLoops();
      this.orient();
      this.fit();
    }
    this.change();
  }

  /** An occupancy grid on the floor; `bitmap` has grey values. */
  setGrid(message, bitmap) {
    const gl = this.gl;
    if (this.grid) gl.deleteTexture(this.grid.texture);
    const texture = twgl.createTexture(gl, { src: bitmap, min: gl.NEAREST, mag: gl.NEAREST, wrap: gl.CLAMP_TO_EDGE, flipY: 0 });
    const [x, y] = message.origin;
    const corners = [[0, 0], [1, 0], [0, 1], [1, 1]].map(([u, v]) => [x + u * message.width, y + v * message.height, 0]);
    const world = corners.flatMap((corner) => MapScene.transform(message.pose, corner));
    const buffers = twgl.createBufferInfoFromArrays(gl, {
      position: { numComponents: 3, data: new Float32Array(world) },
      place: { numComponents: 2, data: new Float32Array([0, 0, 1, 0, 0, 1, 1, 1]) },
    });
    if (this.grid) for (const attribute of Object.values(this.grid.buffers.attribs)) gl.deleteBuffer(attribute.buffer);
    this.grid = { texture, buffers };
    this.change();
  }

  /** Up is against the mean of the cameras' y axes, ahead the mean of their z axes. */
  orient() {
    const sum = [[0, 0, 0], [0, 0, 0]];
    for (const [id, { pose }] of this.graph.keyframes) {
      if (!this.shown(id)) continue;
      [[0, -1, 0], [0, 0, 1]].forEach((axis, k) => MapScene.rotate(pose, axis).forEach((v, a) => { sum[k][a] += v; }));
    }
    if (Math.hypot(...sum[0]) < 1e-6 || this.look.touched) return;
    this.up = MapScene.unit(sum[0]);
    const level = sum[1].map((v, k) => v - this.up[k] * MapScene.dot(sum[1], this.up));
    if (Math.hypot(...level) > 0.05 * this.graph.keyframes.size) this.ahead = MapScene.unit(level);
    else this.ahead = MapScene.unit(MapScene.cross(this.up, Math.abs(this.up[0]) < 0.9 ? [1, 0, 0] : [0, 0, 1]));
  }

  /** Shows everything, until somebody has turned it. */
  fit(again = false) {
    this.change();
    if (this.look.touched && !again) return;
    this.look.touched = false;
    const places = [];
    for (const [id, cloud] of this.clouds) {
      if (!this.shown(id)) continue;
      const { pose } = this.graph.keyframes.get(id);
      const every = Math.max(1, Math.floor(cloud.count / 40));
      for (let k = 0; k < cloud.count; k += every) {
        const at = [0, 1, 2].map((a) => cloud.positions[3 * k + a] / 32767 * cloud.extent);
        places.push(MapScene.transform(pose, at));
      }
    }
    for (let k = 0; k < this.trail.count; k += 8) places.push([...this.trail.positions.subarray(3 * k, 3 * k + 3)]);
    if (places.length < 2) return;
    // The middle nine tenths, as single points may lie far away.
    const range = [0, 1, 2].map((a) => {
      const sorted = places.map((p) => p[a]).sort((x, y) => x - y);
      const at = (share) => sorted[Math.round((sorted.length - 1) * share)];
      return [at(0.05), at(0.95)];
    });
    this.look.target = range.map(([low, high]) => (low + high) / 2);
    this.look.distance = Math.max(0.5, 1.2 * Math.hypot(...range.map(([low, high]) => high - low)));
  }

  change() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(this.draw);
  }

  /** The eye's axes and place, by the look. */
  axes() {
    const { yaw, pitch, distance, target } = this.look;
    const side = MapScene.cross(this.ahead, this.up);
    const level = [0, 1, 2].map((k) => this.ahead[k] * Math.cos(yaw) + side[k] * Math.sin(yaw));
    const forward = [0, 1, 2].map((k) => level[k] * Math.cos(pitch) - this.up[k] * Math.sin(pitch));
    const right = MapScene.unit(MapScene.cross(forward, this.up));
    const above = MapScene.cross(right, forward);
    const eye = [0, 1, 2].map((k) => target[k] - forward[k] * distance);
    return { forward, right, above, eye };
  }

  /** The matrix from the world to the screen, by columns. */
  projection() {
    const { forward, right, above, eye } = this.axes();
    const aspect = this.canvas.width / Math.max(1, this.canvas.height);
    const f = 1 / Math.tan(0.45), near = this.look.distance / 200, far = this.look.distance * 50;
    // The shorter side of the screen has the whole angle.
    const row = (axis, scale) => [...axis, -MapScene.dot(axis, eye)].map((v) => v * scale);
    const rows = [row(right, f / Math.max(aspect, 1)), row(above, f * Math.min(aspect, 1)), row(forward, (far + near) / (far - near)), row(forward, 1)];
    rows[2][3] -= 2 * far * near / (far - near);
    const out = new Float32Array(16);
    for (let k = 0; k < 16; k++) out[k] = rows[k % 4][k >> 2];
    return out;
  }

  draw() {
    this.drawing = false;
    const gl = this.gl;
    twgl.resizeCanvasToDisplaySize(this.canvas, Math.min(2, window.devicePixelRatio || 1));
    gl.viewport(0, 0, gl.canvas.width, gl.canvas.height);
    gl.clearColor(0.043, 0.055, 0.075, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.enable(gl.DEPTH_TEST);
    const projection = this.projection();
    // A point covers about what lies between it and its neighbours.
    const pixels = gl.canvas.height / Math.tan(0.45);
    gl.useProgram(this.points.program);
    for (const [id, cloud] of this.clouds) {
      if (!this.shown(id)) continue;
      const { pose } = this.graph.keyframes.get(id);
      twgl.setBuffersAndAttributes(gl, this.points, cloud.buffers);
      const spacing = 1.1 / Math.sqrt(Math.max(cloud.count, 1));
      twgl.setUniforms(this.points, { projection, place: pose.slice(0, 3), turn: pose.slice(3, 7), size: cloud.extent * pose[7], pixels: pixels * spacing * cloud.extent * pose[7] * 0.5, tint: [1, 1, 1, 1] });
      twgl.drawBufferInfo(gl, cloud.buffers, gl.POINTS);
    }
    this.drawGrid(projection);
    this.drawWires(projection);
    gl.useProgram(this.lines.program);
    gl.disable(gl.DEPTH_TEST);
    for (const buffers of [this.loopsBuffers, this.trailBuffers]) {
      if (!buffers) continue;
      twgl.setBuffersAndAttributes(gl, this.lines, buffers);
      twgl.setUniforms(this.lines, { projection, place: [0, 0, 0], turn: [0, 0, 0, 1], size: 1, tint: [1, 1, 1, 1] });
      twgl.drawBufferInfo(gl, buffers, gl.LINES);
    }
  }

  /** Keyframes and the camera as pyramids. */
  drawWires(projection) {
    const gl = this.gl;
    gl.useProgram(this.lines.program);
    twgl.setBuffersAndAttributes(gl, this.lines, this.wire);
    const size = Math.min(0.15, this.look.distance * 0.02);
    const wire = (pose, scale, tint) => {
      twgl.setUniforms(this.lines, { projection, place: pose.slice(0, 3), turn: pose.slice(3, 7), size: scale, tint });
      twgl.drawBufferInfo(gl, this.wire, gl.LINES);
    };
    for (const [id, { pose }] of this.graph.keyframes) if (this.shown(id)) wire(pose, size, MapScene.COLORS.keyframe);
    if (this.camera) wire(this.camera, 2 * size, MapScene.COLORS.camera);
  }

  drawGrid(projection) {
    if (!this.grid) return;
    const gl = this.gl;
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
    gl.useProgram(this.textured.program);
    twgl.setBuffersAndAttributes(gl, this.textured, this.grid.buffers);
    twgl.setUniforms(this.textured, { projection, cells: this.grid.texture });
    twgl.drawBufferInfo(gl, this.grid.buffers, gl.TRIANGLE_STRIP);
    gl.disable(gl.BLEND);
  }

  /** Mouse and fingers. */
  listen() {
    const canvas = this.canvas;
    const fingers = new Map();
    canvas.style.touchAction = 'none';
    canvas.addEventListener('contextmenu', (event) => event.preventDefault());
    canvas.addEventListener('pointerdown', (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
    });
    const up = (event) => fingers.delete(event.pointerId);
    for (const name of ['pointerup', 'pointercancel', 'lostpointercapture']) canvas.addEventListener(name, up);
    canvas.addEventListener('pointermove', (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const now = [event.clientX, event.clientY];
      const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
      if (fingers.size === 1 && !(event.buttons & 6) && !event.shiftKey) {
        this.turn(dx, dy);
      } else if (fingers.size === 1) {
        this.move(dx, dy);
      } else if (fingers.size === 2) {
        const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
        const apart = (place) => Math.max(8, Math.hypot(place[0] - other[0], place[1] - other[1]));
        this.zoom(apart(before) / apart(now));
        this.move(dx / 2, dy / 2);
      }
      fingers.set(event.pointerId, now);
    });
    canvas.addEventListener('wheel', (event) => {
      if (this.embedded && !this.look.touched) return;
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.0015));
    }, { passive: false });
    canvas.addEventListener('dblclick', () => this.fit(true));
  }

  turn(dx, dy) {
    this.look.touched = true;
    this.look.yaw += dx * 0.006;
    this.look.pitch = Math.max(-1.5, Math.min(1.5, this.look.pitch + dy * 0.006));
    this.change();
  }

  move(dx, dy) {
    this.look.touched = true;
    const { right, above } = this.axes();
    const scale = this.look.distance * 2 * Math.tan(0.45) / Math.max(1, this.canvas.clientHeight);
    for (let k = 0; k < 3; k++) this.look.target[k] += (-right[k] * dx + above[k] * dy) * scale;
    this.change();
  }

  zoom(factor) {
    this.look.touched = true;
    this.look.distance = Math.max(0.02, Math.min(1e5, this.look.distance * factor));
    this.change();
  }

  static dot(a, b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
  static cross(a, b) { return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]; }
  static unit(a) { const n = Math.hypot(...a) || 1; return a.map((v) => v / n); }
  static rotate(pose, v) {
    const q = [pose[3], pose[4], pose[5]], t = MapScene.cross(q, v).map((x) => 2 * x);
    const u = MapScene.cross(q, t);
    return v.map((x, k) => x + pose[6] * t[k] + u[k]);
  }
  static transform(pose, v) { return MapScene.rotate(pose, v.map((x) => x * pose[7])).map((x, k) => x + pose[k]); }
}

MapScene.WIRE = (() => {
  const corners = [[-0.8, -0.6, 1], [0.8, -0.6, 1], [0.8, 0.6, 1], [-0.8, 0.6, 1]];
  const ends = corners.flatMap((corner, k) => [[0, 0, 0], corner, corner, corners[(k + 1) % 4]]);
  return new Float32Array(ends.flat());
})();

MapScene.PLACE = `
  uniform mat4 projection;
  uniform vec3 place;
  uniform vec4 turn;
  uniform float size;
  vec3 world(vec3 v) { v *= size; return v + 2.0 * cross(turn.xyz, cross(turn.xyz, v) + turn.w * v) + place; }`;
MapScene.POINT_SHADER = `
  attribute vec3 position, color;
  uniform float pixels;
  varying vec3 shade;
  ${MapScene.PLACE}
  void main() {
    gl_Position = projection * vec4(world(position), 1.0);
    gl_PointSize = clamp(pixels / gl_Position.w, 1.5, 9.0);
    shade = color;
  }`;
MapScene.LINE_SHADER = `
  attribute vec3 position, color;
  varying vec3 shade;
  ${MapScene.PLACE}
  void main() {
    gl_Position = projection * vec4(world(position), 1.0);
    shade = color;
  }`;
MapScene.COLOR_SHADER = `
  precision mediump float;
  uniform vec4 tint;
  varying vec3 shade;
  void main() { gl_FragColor = vec4(shade * tint.rgb, 1.0); }`;
MapScene.GRID_SHADER = `
  attribute vec3 position;
  attribute vec2 place;
  uniform mat4 projection;
  varying vec2 at;
  void main() { gl_Position = projection * vec4(position, 1.0); at = place; }`;
MapScene.TEXTURE_SHADER = `
  precision mediump float;
  uniform sampler2D cells;
  varying vec2 at;
  void main() {
    float value = texture2D(cells, at).r;
    bool unknown = value > 0.45 && value < 0.55;
    if (unknown) discard;
    gl_FragColor = value > 0.5 ? vec4(0.95, 0.4, 0.4, 0.85) : vec4(0.55, 0.65, 0.8, 0.3);
  }`;
