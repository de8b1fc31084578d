// The live page: receives the stream of messages, shows them, and connects again when it ends.
'use strict';

(() => {
  const element = (id) => document.getElementById(id);
  /** Nothing for so long is a connection that is dead: the server sends something every second. */
  const SILENCE = 8000;
  const RETRY = [500, 1000, 2000, 4000];
  const base = location.pathname.replace(/\/?$/, '/');

  const live = { connections: 0, received: 0, images: 0, bytes: 0, connected: false, ended: false, state: null, scene: null };
  window.live = live;

  function notice(text, low = false) {
    element('notice').hidden = !text;
    element('notice').textContent = text;
    element('notice').className = low ? 'low' : '';
  }

  try {
    live.scene = new MapScene(element('map'));
  } catch (error) {
    notice(`The map cannot be drawn: ${error.message}.`, true);
  }
  const scene = live.scene;

  const show = {
    hello({ value }) {
      scene?.forget();
      document.title = `MASt3R-SLAM ${value.version}`;
    },
    state({ value }) {
      live.state = value;
      const badge = element('state');
      badge.textContent = value.failure ?? value.state;
      badge.title = badge.textContent;
      const good = ['tracking', 'initialising', 'relocalised'].includes(value.state);
      badge.className = `badge ${value.failure || value.state.startsWith('lost') ? 'bad' : good ? 'good' : 'wait'}`;
      const set = (id, text) => { element(id).textContent = text ?? '–'; };
      set('frame', value.frame);
      set('rate', value.frames_per_second?.toFixed(1));
      set('keyframes', value.keyframes);
      set('loops', value.loop_edges);
      set('points', scene?.pointCount.toLocaleString('en'));
      set('lost', value.lost_s?.toFixed(1));
      set('matched', value.matched === null ? null : `${(100 * value.matched).toFixed(0)} % of the pixels`);
      element('splats').hidden = !value.splats;
      times(value.times_ms);
      facts(value);
      if (value.world_from_camera) scene?.setCamera(value.world_from_camera, value.submap);
    },
    image(message) {
      live.images += 1;
      picture(message);
    },
    graph(message) { scene?.setGraph(message); },
    cloud(message) { scene?.setCloud(message); },
    trail(message) { scene?.setTrail(message); },
    async grid(message) {
      const bitmap = await createImageBitmap(new Blob([message.png], { type: 'image/png' }));
      scene?.setGrid(message, bitmap);
      bitmap.close();
    },
    end({ value }) {
      live.ended = true;
      notice(`${value.text}\nThe map stays here until this page is closed.`, true);
      element('state').textContent = 'ended';
      element('state').className = 'badge';
    },
  };

  let drawing = false, next = null;
  /** Draws the newest image; those that come while one is decoded are left out. */
  async function picture(message) {
    next = message;
    if (drawing) return;
    drawing = true;
    while (next) {
      const { jpeg, width, height, matches } = next;
      next = null;
      try {
        const bitmap = await createImageBitmap(new Blob([jpeg], { type: 'image/jpeg' }));
        const canvas = element('image');
        if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
        const context = canvas.getContext('2d');
        context.drawImage(bitmap, 0, 0);
        bitmap.close();
        context.lineWidth = Math.max(1, width / 400);
        context.strokeStyle = 'rgba(250, 204, 21, .8)';
        context.beginPath();
        for (let k = 0; k < matches.length; k += 4) {
          context.moveTo(matches[k], matches[k + 1]);
          context.lineTo(matches[k + 2], matches[k + 3]);
        }
        context.stroke();
        context.fillStyle = '#facc15';
        const side = context.lineWidth * 1.6;
        for (let k = 0; k < matches.length; k += 4) context.fillRect(matches[k + 2] - side / 2, matches[k + 3] - side / 2, side, side);
      } catch (error) {
        console.warn('an image cannot be shown', error);
      }
    }
    drawing = false;
  }

  const bars = new Map();
  const STAGES = ['preprocess', 'encode', 'decode', 'matching', 'tracking', 'fusion', 'mapping', 'total'];
  function times(values) {
    const total = values?.total || 1;
    for (const name of STAGES) {
      const millis = values?.[name];
      if (millis === undefined) continue;
      if (!bars.has(name)) {
        const row = document.createElement('div');
        row.className = 'time';
        const [label, bar, value] = ['span', 'i', 'span'].map((tag) => row.appendChild(document.createElement(tag)));
        label.textContent = name;
        element('times').append(row);
        bars.set(name, { bar, value });
      }
      bars.get(name).bar.style.width = `${Math.min(100, 100 * millis / total)}%`;
      bars.get(name).value.textContent = `${millis.toFixed(1)} ms`;
    }
  }

  const rows = new Map();
  function facts(value) {
    const scale = value.scale;
    const lines = {
      stamp: value.stamp, engine: value.engine, version: value.version,
      scale: scale ? `${scale.factor.toFixed(3)} ± ${(100 * scale.sigma).toFixed(1)} % by ${scale.source}` : 'not measured by a sensor',
      map: value.map_full ? 'full: it no longer grows' : 'growing',
      ...Object.fromEntries(Object.entries(value.dropped).filter(([, count]) => count > 0)),
    };
    for (const [name, text] of Object.entries(lines)) {
      if (!rows.has(name)) {
        const [term, description] = ['dt', 'dd'].map((tag) => document.createElement(tag));
        term.textContent = name;
        element('facts').append(term, description);
        rows.set(name, description);
      }
      rows.get(name).textContent = text ?? '–';
    }
  }

  let abort = null, failures = 0, timer = 0;

  function later() {
    clearTimeout(timer);
    if (live.ended || document.hidden) return;
    timer = setTimeout(connect, RETRY[Math.min(failures++, RETRY.length - 1)]);
  }

  async function connect() {
    abort?.abort();
    const own = abort = new AbortController();
    const { signal } = own;
    let silence = setTimeout(() => notice('The server does not answer. A browser opens about six connections to one address: close other tabs of this page.'), 5000);
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => own.abort(), SILENCE);
    };
    try {
      const response = await fetch(`${base}stream`, { cache: 'no-store', signal });
      heard();
      if (!response.ok) throw new Error(await response.text());
      const reader = response.body.getReader();
      const splitter = new messages.Splitter();
      live.connections += 1;
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        heard();
        live.bytes += value.length;
        for (const message of splitter.add(value)) {
          live.received += 1;
          show[message.kind](message);
        }
        if (!live.connected) notice('');
        [live.connected, failures] = [true, 0];
      }
      if (!live.ended) notice('The connection has ended; connecting again …', live.received > 0);
    } catch (error) {
      const gone = error.name === 'AbortError' || error instanceof TypeError;
      if (abort === own && !live.ended) notice(gone ? 'The program cannot be reached; connecting again …' : error.message, live.received > 0);
    } finally {
      clearTimeout(silence);
    }
    if (abort === own) {
      live.connected = false;
      if (!live.ended) { element('state').textContent = 'not connected'; element('state').className = 'badge wait'; }
      later();
    }
  }

  // A page that nobody sees lets go of its place.
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) {
      clearTimeout(timer);
      abort?.abort();
    } else if (!live.connected && !live.ended) {
      connect();
    }
  });
  element('fit').addEventListener('click', () => scene?.fit(true));
  element('toggle').addEventListener('click', () => element('panel').classList.toggle('hidden'));
  connect();
})();
