// Shows the splats that the program has when the page is opened.
import * as SPLAT from './splats/viewer.js';

const element = (id) => document.getElementById(id);
/** Bytes of a splat: position, scale, colour, rotation. */
const ROW = 32;

const splats = { count: 0, frames: 0 };
window.splats = splats;

/** Centre of the positions, and how far most of them are from it. */
function extent(data, count) {
  const view = new DataView(data);
  const stride = Math.max(1, Math.floor(count / 2000));
  const points = [];
  for (let row = 0; row < count; row += stride) {
    points.push([0, 4, 8].map((offset) => view.getFloat32(ROW * row + offset, true)));
  }
  const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
  const centre = [0, 1, 2].map((axis) => middle(points.map((point) => point[axis])));
  const radius = middle(points.map((point) => Math.hypot(...point.map((v, axis) => v - centre[axis]))));
  return { centre, radius };
}

function show(data) {
  const count = Math.floor(data.byteLength / ROW);
  if (count === 0) throw new Error('There are no splats yet; reload the page when the camera has moved.');
  const { centre, radius } = extent(data, count);
  const canvas = element('map');
  const renderer = new SPLAT.WebGLRenderer(canvas);
  const [scene, camera] = [new SPLAT.Scene(), new SPLAT.Camera()];
  const target = new SPLAT.Vector3(...centre);
  const controls = new SPLAT.OrbitControls(camera, canvas, 0.5, 0.3, Math.max(0.1, 4 * radius), true, target);
  SPLAT.Loader.LoadFromArrayBuffer(data, scene);
  const resize = () => renderer.setSize(canvas.clientWidth, canvas.clientHeight);
  window.addEventListener('resize', resize);
  resize();
  splats.count = count;
  element('count').textContent = count.toLocaleString('en');
  element('notice').hidden = true;
  const frame = () => {
    controls.update();
    renderer.render(scene, camera);
    splats.frames += 1;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

element('again').addEventListener('click', () => location.reload());
try {
  const response = await fetch('./splats/data', { cache: 'no-store' });
  if (!response.ok) throw new Error(await response.text());
  show(await response.arrayBuffer());
} catch (error) {
  element('notice').textContent = error.message;
}
