// Shows the splats of a report once they are on screen. A page from a file loads no module but by such an address.
drawOn('splats', 'The splats', async (canvas) => {
  const splats = { count: 0, frames: 0 };
  window.report.splats = splats;
  await new Promise((seen) => {
    new IntersectionObserver((entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      seen();
    }).observe(canvas);
  });
  const source = document.getElementById('splat-viewer').textContent;
  const address = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
  showSplats(await import(address), canvas, embedded('splat-data').buffer, splats);
});
