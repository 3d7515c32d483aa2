/** The list of conversations, and whether it is shown. */

import { element, iconButton } from "./dom.js";
import { listConversations } from "./store.js";

const list = document.getElementById("conversations");
const narrow = window.matchMedia("(max-width: 50rem)");

/** Draws the list; `remove` is called with the id of one that is to go. */
export function drawSidebar(currentId, runningIds, remove) {
  const items = listConversations().map(({ id, title }) => {
    const attributes = {
      href: `#${id}`,
      title,
      class: runningIds.has(id) ? "running" : null,
      "aria-current": id === currentId ? "page" : null,
    };
    const button = iconButton("trash", `Delete “${title}”`, () => remove(id));
    return element("li", {}, element("a", attributes, title), button);
  });
  // Whoever walks through the list with the keyboard keeps the place.
  const focused = [...list.querySelectorAll("a, button")].indexOf(document.activeElement);
  list.replaceChildren(...items);
  if (focused >= 0) list.querySelectorAll("a, button")[focused]?.focus();
}

export function toggleSidebar() {
  const open = document.body.dataset.nav ?? (narrow.matches ? "closed" : "open");
  setSidebar(open === "open" ? "closed" : "open");
}

/** On a narrow screen the list lies over the conversation. */
export function leaveSidebar() {
  if (narrow.matches) setSidebar("closed");
}

function setSidebar(state) {
  document.body.dataset.nav = state;
  drawButton();
}

function drawButton() {
  const open = document.body.dataset.nav ?? (narrow.matches ? "closed" : "open");
  document.getElementById("menu").setAttribute("aria-expanded", open === "open");
}

document.getElementById("scrim").addEventListener("click", leaveSidebar);
narrow.addEventListener("change", () => {
  delete document.body.dataset.nav;
  drawButton();
});
drawButton();
