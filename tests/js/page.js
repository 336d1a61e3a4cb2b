// A page for the modules that read one when they are imported: what Python embeds, and of a document what they ask for.
// The data are rows here, and columns there.
const columns = (rows) => {
  const names = [...new Set(rows.flatMap(Object.keys))];
  return { n: rows.length, ...Object.fromEntries(names.map((name) => [name, rows.map((row) => row[name] ?? null)])) };
};

const STEP_TIME = 0.05;
// A case as Python embeds it: DDP on 2 ranks, one launch.
export const aCase = (more) => ({
  case_id: Object.values(more).filter((each) => each !== "").join("-"), label: more.case_id, work: 0, status: "ok", strategy: "ddp",
  algorithm: "native", world_size: 2, bucket_mib: null, step_time_s: STEP_TIME, low_s: more.step_time_s ?? STEP_TIME,
  high_s: more.step_time_s ?? STEP_TIME, p90_s: null, spread: 0.01, plus_minus_s: null, statistic: "median", tokens_per_s: 1000,
  slower: null, slower_low: null, slower_high: null, left_after_repetition: null, left_at_least: null,
  n_ok: 1, n_launches: 1, ranking: "", mark: "", ranked: true, device: "cpu", model: "gpt-nano", ...more,
});
export const aLaunch = (more) => ({
  launch_id: 1, case: 0, repetition: 0, status: "ok", launch_step_s: STEP_TIME, counts: 1, from_case: 0, drift: null, ...more,
});

// Put this before `await import(...)` of what reads it. `tables` are rows by the name of their table, `tables_of` what
// Python declares of those that the script fills.
export const givePage = ({ tables = {}, tables_of = {}, figures = {}, ...data }) => {
  const embedded = {
    filters: [],
    ...Object.fromEntries(Object.entries(tables).map(([name, rows]) => [name, columns(rows)])), tables: tables_of, ...data,
  };
  const texts = { data: JSON.stringify(embedded), figures: JSON.stringify(figures) };
  const element = () => ({
    dataset: {}, children: [], append(...more) { this.children.push(...more); }, addEventListener() {}, setAttribute() {},
  });
  globalThis.document = {
    title: "a session · parabench", documentElement: { dataset: {} }, body: element(), createElement: element,
    getElementById: (id) => (texts[id] ? { textContent: texts[id] } : null),
  };
  globalThis.location = { hash: "" };
  const steps = [];
  globalThis.history = {
    state: null, steps,
    pushState(state, _, url) { this.state = state; steps.push(url); globalThis.location.hash = url; },
    replaceState(state, _, url) { this.state = state; globalThis.location.hash = url; },
  };
  globalThis.innerWidth = 1440;
};
