// Shows the splats that the program has when the page is opened.
import * as SPLAT from './splats/viewer.js';

const element = (id) => document.getElementById(id);
const splats = { count: 0, frames: 0 };
window.splats = splats;

element('again').addEventListener('click', () => location.reload());
try {
  const response = await fetch('./splats/data', { cache: 'no-store' });
  if (!response.ok) throw new Error(await response.text());
  showSplats(SPLAT, element('map'), await response.arrayBuffer(), splats);
  element('count').textContent = splats.count.toLocaleString('en');
  element('notice').hidden = true;
} catch (error) {
  element('notice').textContent = error.message;
}
