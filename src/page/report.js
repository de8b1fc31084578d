// Shows the map in a report: its data is in the page.
'use strict';

(() => {
  const canvas = document.getElementById('map');
  if (!canvas) return;
  try {
    const scene = new MapScene(canvas, true);
    window.report = { scene };
    const text = atob(document.getElementById('map-data').textContent.trim());
    const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
    const show = { graph: (m) => scene.setGraph(m), cloud: (m) => scene.setCloud(m), trail: (m) => scene.setTrail(m) };
    for (const message of new messages.Splitter().add(bytes)) show[message.kind]?.(message);
  } catch (error) {
    const said = document.createElement('p');
    said.textContent = `The map cannot be drawn: ${error.message}.`;
    canvas.replaceWith(said);
  }
})();
