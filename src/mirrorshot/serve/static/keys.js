/** Keys and clicks in the grid. `page` has the list and the view as they are, and what to draw after a move. */

import { showKeys } from "./dialogs.js";
import { byId } from "./dom.js";
import { focusTile, step } from "./grid.js";

const grid = byId("grid");

export function listen(page, act) {
  const { view } = page;
  const placeNow = () => ({ current: view.current ?? page.list()[0]?.id, selected: new Set(view.selected) });

  function moveTo(id, isExtending, before = placeNow()) {
    if (isExtending) {
      const [a, b] = [view.anchor ?? view.current ?? id, id].map((end) => page.list().findIndex((image) => image.id === end)).sort((x, y) => x - y);
      view.selected = new Set(page.list().slice(Math.max(0, a), b + 1).map((image) => image.id));
    } else view.anchor = id;
    view.current = id;
    page.drawMove(before);
    focusTile(id);
  }

  const toggle = (id) => { if (!view.selected.delete(id)) view.selected.add(id); };
  const accept = () => act.accept(page.targets());
  const anywhere = {
    a: accept, n: () => act.none(page.targets()), 0: () => act.open(page.targets()), u: act.undo, "?": showKeys,
    g: () => page.list().length && moveTo(view.current ?? page.list()[0].id, false), Delete: () => page.targets().length && act.remove(page.targets()),
    Escape: () => act.select([], { current: null }),
  };
  const inGrid = { Enter: accept, " ": () => { const before = placeNow(); toggle(view.current); page.drawMove(before); } };

  function actionOf({ key: pressed, target, shiftKey, ctrlKey, metaKey }) {
    const isInGrid = grid.contains(target);
    const key = pressed.length === 1 ? pressed.toLowerCase() : pressed; // capitals with Shift or Caps Lock
    if (ctrlKey || metaKey) {
      if (shiftKey) return null;
      if (key === "z") return act.undo;
      return key === "a" && isInGrid ? () => act.select(page.list().map(({ id }) => id)) : null;
    }
    if (/^[1-9]$/.test(key)) {
      const found = page.classes()[Number(key) - 1];
      return found && page.targets().length ? () => act.label(page.targets(), found.id) : null;
    }
    if (isInGrid && step(key) !== undefined && page.list().length) {
      const place = page.list().findIndex(({ id }) => id === Number(target.dataset.id ?? view.current));
      const next = page.list()[Math.min(page.list().length - 1, Math.max(0, place + step(key)))];
      return () => moveTo(next.id, shiftKey);
    }
    if (isInGrid && inGrid[key]) return inGrid[key];
    return (key === "Enter" && target === document.body ? accept : anywhere[key]) ?? null;
  }

  document.addEventListener("keydown", (event) => {
    if (!page.isLoaded() || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    const action = actionOf(event);
    if (!action) return;
    event.preventDefault();
    action();
  });

  grid.addEventListener("click", (event) => {
    const id = Number(event.target.closest(".tile")?.dataset.id);
    if (!id) return;
    const before = placeNow();
    if (event.ctrlKey || event.metaKey || event.pointerType === "touch") toggle(id);
    moveTo(id, event.shiftKey, before);
  });

  // a click moves when it ends: a question that appeared before would push the image away from under it
  let isPointing = false;
  for (const [kind, value] of [["pointerdown", true], ["click", false], ["pointercancel", false], ["dragend", false], ["keydown", false]])
    document.addEventListener(kind, () => { isPointing = value; }, true);

  grid.addEventListener("focusin", (event) => {
    const id = Number(event.target.dataset.id);
    if (!id || id === view.current || isPointing) return;
    const before = placeNow();
    view.current = view.anchor = id;
    page.drawMove(before);
  });
}
