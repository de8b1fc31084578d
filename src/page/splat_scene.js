// Draws splats on a canvas; `SPLAT` is the viewer's module.

/** Bytes of a splat: position, scale, colour, rotation. */
const ROW = 32;

/** Centre of the positions, and their median distance from it. */
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

/** Shows the rows in the ArrayBuffer `data`. `splats.count` becomes their number, `splats.frames` counts images. */
function showSplats(SPLAT, canvas, data, splats) {
  const count = Math.floor(data.byteLength / ROW);
  if (count === 0) throw new Error('There are no splats yet; reload the page when the camera has moved.');
  const { centre, radius } = extent(data, count);
  const renderer = new SPLAT.WebGLRenderer(canvas);
  const [scene, camera] = [new SPLAT.Scene(), new SPLAT.Camera()];
  const target = new SPLAT.Vector3(...centre);
  const controls = new SPLAT.OrbitControls(camera, canvas, 0.5, 0.3, Math.max(0.1, 4 * radius), true, target);
  SPLAT.Loader.LoadFromArrayBuffer(data, scene);
  const resize = () => renderer.setSize(canvas.clientWidth, canvas.clientHeight);
  window.addEventListener('resize', resize);
  resize();
  splats.count = count;
  const frame = () => {
    requestAnimationFrame(frame);
    const { top, bottom } = canvas.getBoundingClientRect();
    if (bottom < 0 || top > window.innerHeight) return;
    controls.update();
    renderer.render(scene, camera);
    splats.frames += 1;
  };
  requestAnimationFrame(frame);
}
