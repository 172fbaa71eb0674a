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
        const response = await fetch(form.dataset.check, { method: "POST", body });
        const html = await response.text();
        // Only the last question counts.
        if (nth === asked && answer) replace(html);
      } catch {
        if (nth === asked && answer) answer.textContent = "The server does not answer.";
      }
    }, 300);
  });
}

document.querySelectorAll("[data-events]").forEach(follow);
document.querySelectorAll("form[data-check]").forEach(check);
