// Shows the splats of a report once they are on screen. A page from a file imports a module by the address of a blob;
// a worker of such an address is refused there, so the viewer makes its workers from data: it does so where no address
// can be made.
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
  const viewer = await import(address);
  URL.createObjectURL = () => '';
  showSplats(viewer, canvas, embedded('splat-data').buffer, splats);
});
