// Scripts of the console. The server renders all HTML; the pages also work without scripts.
"use strict";

// Replaces sections by id. Unchanged sections and those with selected text stay; the focused element
// keeps its focus.
function replace(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html").body;
  for (const section of [...parsed.children]) {
    const old = document.getElementById(section.id);
    if (!old || old.innerHTML === section.innerHTML || hasSelection(old)) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    const opened = [...old.querySelectorAll("details[open][id]")].map((details) => details.id);
    const [left, top] = [...old.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop])[0] || [0, 0];
    old.replaceChildren(...section.childNodes);
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    const box = old.querySelector(".scroll");
    if (box) [box.scrollLeft, box.scrollTop] = [left, top];
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    if (column) readOut(document.getElementById(column.id));
  }
}

function hasSelection(element) {
  const selection = getSelection();
  return selection && !selection.isCollapsed && element.contains(selection.anchorNode);
}

// Follows the event stream of a page while the page is visible.
function follow(page) {
  const state = document.getElementById(page.dataset.state);
  const show = (text) => { if (state && state.textContent !== text) state.textContent = text; };
  let events = null;
  let paused = false;
  const end = () => { events?.close(); events = null; };
  const begin = () => {
    if (events || paused || document.hidden) return;
    events = new EventSource(page.dataset.events);
    events.addEventListener("open", () => show("live"));
    events.addEventListener("sections", (event) => { show("live"); replace(event.data); });
    events.addEventListener("error", () => {
      show("disconnected, retrying");
      // After an error status the browser does not reconnect.
      if (events && events.readyState === EventSource.CLOSED) { end(); setTimeout(begin, 5000); }
    });
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
  const button = document.getElementById("pause");
  button?.removeAttribute("hidden");
  button?.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    if (paused) { end(); show("paused"); } else begin();
  });
  begin();
}

// The HTML of a response with a part of a page. Throws for redirects and errors.
async function part(request) {
  const response = await request.catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server is unreachable.");
  });
  if (response.redirected || response.status === 401) throw new Error("The session has ended; reload the page.");
  if (response.status === 413) throw new Error("The text is too long.");
  if (!response.ok) throw new Error("The server is busy; keep typing to retry.");
  return response.text();
}

// Sends a form to the server 300 ms after the last input and shows the result.
function check(form) {
  const result = document.getElementById(form.dataset.result);
  let timer = 0;
  let sent = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const nth = ++sent;
      try {
        const body = new URLSearchParams(new FormData(form));
        const html = await part(fetch(form.dataset.check, { method: "POST", body }));
        // Responses to earlier requests are ignored.
        if (nth === sent && result) replace(html);
      } catch (error) {
        if (nth === sent && result) result.textContent = error.message;
      }
    }, 300);
  });
}

document.querySelectorAll("[data-events]").forEach(follow);
document.querySelectorAll("form[data-check]").forEach(check);

// The playground: simulates again 400 ms after the last input, and updates the URL.
function play(form) {
  let timer = 0;
  let request = null;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      request?.abort();
      request = new AbortController();
      const typed = new URLSearchParams([...new FormData(form)].filter(([, text]) => text.trim()));
      try {
        replace(await part(fetch(`${form.getAttribute("action")}?part&${typed}`, { signal: request.signal })));
        for (const input of form.querySelectorAll("[aria-describedby]")) {
          const invalid = document.getElementById(input.getAttribute("aria-describedby"))?.childElementCount > 0;
          invalid ? input.setAttribute("aria-invalid", "true") : input.removeAttribute("aria-invalid");
        }
        const link = document.getElementById("link");
        if (link) history.replaceState(null, "", link.getAttribute("href"));
      } catch (error) {
        const outcome = document.getElementById(form.dataset.play);
        if (error.name !== "AbortError" && outcome) outcome.textContent = error.message;
      }
    }, 400);
  });
}

// The values of a chart: of the column under the pointer, or chosen with the arrow keys. `column` has
// the id of the chart and the position of the column, counted from the newest.
let column = null;

function readOut(chart) {
  const output = chart?.parentElement.querySelector("output.readout");
  if (!output) return;
  const [allowed, denied] = ["allowed", "denied"].map((name) => chart.dataset[name].split(" "));
  const at = allowed.length - 1 - column.back;
  const ago = (column.back + 1) * Number(chart.dataset.seconds);
  const when = ago < 60 ? `${ago} s ago` : `${Math.floor(ago / 60)} min ${ago % 60} s ago`;
  output.textContent = `${when}: ${allowed[at]}/s allowed, ${denied[at]}/s denied`;
}

function choose(chart, back) {
  const last = chart.dataset.allowed.split(" ").length - 1;
  column = { id: chart.id, back: Math.min(Math.max(back, 0), last) };
  readOut(chart);
}

function clearReadOut() {
  const output = column && document.getElementById(column.id)?.parentElement.querySelector("output.readout");
  if (output) output.textContent = "";
  column = null;
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.(".chart[data-allowed]");
  const box = chart?.querySelector("svg").getBoundingClientRect();
  if (!box) {
    if (column && document.activeElement?.id !== column.id) clearReadOut();
    return;
  }
  // The drawing is 960 wide; the columns are from 58 to 956.
  const share = ((event.clientX - box.left) / box.width * 960 - 58) / 898;
  const count = chart.dataset.allowed.split(" ").length;
  choose(chart, count - 1 - Math.floor(share * count));
});
document.addEventListener("keydown", (event) => {
  if (!event.target.matches?.(".chart[data-allowed]")) return;
  const step = { ArrowLeft: 1, ArrowRight: -1, PageUp: 20, PageDown: -20, Home: Infinity, End: -Infinity }[event.key];
  if (event.key === "Escape") clearReadOut();
  if (step === undefined) return;
  event.preventDefault();
  const back = column?.id === event.target.id ? column.back + step : 0;
  choose(event.target, back);
});

// Copy buttons. Browsers permit copying only over TLS or on localhost.
function copyOnClick() {
  document.documentElement.classList.add("scripted");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    const source = button && document.getElementById(button.dataset.copy);
    if (!source) return;
    try { await navigator.clipboard.writeText(source.href || source.textContent); } catch { return; }
    const label = button.firstChild;
    label.textContent = "Copied";
    setTimeout(() => { label.textContent = "Copy"; }, 1500);
  });
}

document.querySelectorAll("form[data-play]").forEach(play);
if (navigator.clipboard) copyOnClick();
