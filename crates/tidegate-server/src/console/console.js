// What the pages do beyond what they are without a script. Everything shown is made by the server.
"use strict";

// Puts a section that the server has made in the place of the one with its id. A section that says the same is left
// alone, as is one in which somebody has marked text; whatever has the focus keeps it.
function replace(html) {
  const made = new DOMParser().parseFromString(html, "text/html").body;
  for (const section of [...made.children]) {
    const old = document.getElementById(section.id);
    if (!old || old.innerHTML === section.innerHTML || isMarked(old)) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    const opened = [...old.querySelectorAll("details[open][id]")].map((details) => details.id);
    const [left, top] = [...old.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop])[0] || [0, 0];
    old.replaceChildren(...section.childNodes);
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    const box = old.querySelector(".scroll");
    if (box) [box.scrollLeft, box.scrollTop] = [left, top];
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
}

function isMarked(element) {
  const marked = getSelection();
  return marked && !marked.isCollapsed && element.contains(marked.anchorNode);
}

// A page that the server keeps up to date, while somebody looks at it.
function follow(page) {
  const said = document.getElementById(page.dataset.state);
  const say = (text) => { if (said && said.textContent !== text) said.textContent = text; };
  let events = null;
  let paused = false;
  const end = () => { events?.close(); events = null; };
  const begin = () => {
    if (events || paused || document.hidden) return;
    events = new EventSource(page.dataset.events);
    events.addEventListener("open", () => say("live"));
    events.addEventListener("sections", (event) => { say("live"); replace(event.data); });
    events.addEventListener("error", () => {
      say("no answer, trying again");
      // A browser gives up by itself when it is answered with an error.
      if (events && events.readyState === EventSource.CLOSED) { end(); setTimeout(begin, 5000); }
    });
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
  const button = document.getElementById("pause");
  button?.removeAttribute("hidden");
  button?.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    if (paused) { end(); say("paused"); } else begin();
  });
  begin();
}

// The part of a page that an answer is. Another page, which says that something is wrong, is none.
async function part(asked) {
  const response = await asked.catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server does not answer.");
  });
  if (response.redirected || response.status === 401) throw new Error("You are no longer signed in; load the page again.");
  if (response.status === 413) throw new Error("That is too long.");
  if (!response.ok) throw new Error("The server is busy; go on typing to try again.");
  return response.text();
}

// A form that is checked by the server a moment after somebody has typed.
function check(form) {
  const answer = document.getElementById(form.dataset.answer);
  let timer = 0;
  let asked = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const nth = ++asked;
      try {
        const body = new URLSearchParams(new FormData(form));
        const html = await part(fetch(form.dataset.check, { method: "POST", body }));
        // Only the last question counts.
        if (nth === asked && answer) replace(html);
      } catch (error) {
        if (nth === asked && answer) answer.textContent = error.message;
      }
    }, 300);
  });
}

document.querySelectorAll("[data-events]").forEach(follow);
document.querySelectorAll("form[data-check]").forEach(check);

// The playground: tried again a moment after somebody has typed, and the address goes along.
function play(form) {
  let timer = 0;
  let asking = null;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      asking?.abort();
      asking = new AbortController();
      const typed = new URLSearchParams([...new FormData(form)].filter(([, text]) => text.trim()));
      try {
        replace(await part(fetch(`${form.getAttribute("action")}?part&${typed}`, { signal: asking.signal })));
        for (const input of form.querySelectorAll("[aria-describedby]")) {
          const wrong = document.getElementById(input.getAttribute("aria-describedby"))?.childElementCount > 0;
          wrong ? input.setAttribute("aria-invalid", "true") : input.removeAttribute("aria-invalid");
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

// Buttons that copy a text. Browsers let nobody copy but over TLS or on the machine itself.
function copyOnClick() {
  document.documentElement.classList.add("scripted");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    const source = button && document.getElementById(button.dataset.copy);
    if (!source) return;
    try { await navigator.clipboard.writeText(source.href || source.textContent); } catch { return; }
    const said = button.firstChild;
    said.textContent = "Copied";
    setTimeout(() => { said.textContent = "Copy"; }, 1500);
  });
}

document.querySelectorAll("form[data-play]").forEach(play);
if (navigator.clipboard) copyOnClick();
