// Shows the map in a report: its data is in the page.
'use strict';

/** The bytes in base64 in an element. */
function embedded(id) {
  const text = atob(document.getElementById(id).textContent.trim());
  return Uint8Array.from(text, (c) => c.charCodeAt(0));
}

/** Has `draw` draw on a canvas, if the report has it; the canvas gives way to the reason why it fails. */
async function drawOn(id, what, draw) {
  const canvas = document.getElementById(id);
  if (!canvas) return;
  try {
    await draw(canvas);
  } catch (error) {
    const said = document.createElement('p');
    said.textContent = `${what} cannot be drawn: ${error.message}.`;
    canvas.replaceWith(said);
  }
}

window.report = {};
drawOn('map', 'The map', (canvas) => {
  const scene = new MapScene(canvas, true);
  window.report.scene = scene;
  const show = { graph: (m) => scene.setGraph(m), cloud: (m) => scene.setCloud(m), trail: (m) => scene.setTrail(m) };
  for (const message of new messages.Splitter().add(embedded('map-data'))) show[message.kind]?.(message);
});
