// What TensorBoard loads into the frame of the tab. All addresses are relative to the plugin's own.

import {mount} from './static/app.js';

const STYLE = './static/app.css';
const PLOTLY = './static/plotly.min.js?v=PLOTLY_VERSION';

class ServerError extends Error {
  constructor(status, text) {
    super(text || `The server answered ${status}.`);
    this.name = 'ServerError';
    this.status = status;
  }
}

function address(route, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== '') query.set(name, value);
  }
  const text = query.toString();
  return text ? `./${route}?${text}` : `./${route}`;
}

async function get(route, parameters = {}) {
  const response = await fetch(address(route, parameters), {cache: 'no-store'});
  if (!response.ok) throw new ServerError(response.status, (await response.text()).trim());
  return response.json();
}

// Plotly is large, so it comes with the first figure, and once.
let plotly = null;

function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = PLOTLY;
    script.onload = resolve;
    script.onerror = () => {
      plotly = null;
      script.remove();
      reject(new Error('plotly did not load'));
    };
    document.head.append(script);
  });
  return plotly;
}

const source = {
  live: true,
  loadPlotly,
  runs: () => get('runs'),
  page: (run, window) => get('page', {run, window}),
  ranks: (run) => get('ranks', {run}),
  compare: (base, baseWindow, candidate, candidateWindow) =>
    get('compare', {base, base_window: baseWindow, candidate, candidate_window: candidateWindow}),
  traceUrl: (run, window) => address('trace', {run, window}),
};

function style() {
  const link = document.createElement('link');
  link.rel = 'stylesheet';
  link.href = STYLE;
  const loaded = new Promise((resolve) => {
    link.onload = resolve;
    link.onerror = resolve;
  });
  document.head.append(link);
  return loaded;
}

export async function render() {
  await style();
  await mount(document.body, source);
}
