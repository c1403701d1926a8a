(() => {
  "use strict";
  const root = document.documentElement;

  // Light and dark, remembered where there is storage.
  const toggle = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
  const switchTheme = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("amp-migrate-theme", root.dataset.theme); } catch { /* not remembered */ }
    name();
  };
  toggle.addEventListener("click", switchTheme);
  system.addEventListener("change", name);
  name();
  toggle.hidden = false;

  // A link to something folded unfolds it.
  const unfold = (element) => {
    for (let box = element; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
  };
  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target) { unfold(target); target.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  if (location.hash) follow();

  // n and p, or j and k, go from change to change.
  const hunks = [...document.querySelectorAll(".hunk > :is(h4, h5)")];
  const go = (step) => {
    const line = innerHeight / 4;
    const tops = hunks.map((hunk) => hunk.getBoundingClientRect().top);
    let index = hunks.indexOf(document.activeElement?.closest(".hunk > :is(h4, h5)"));
    if (index < 0) index = step > 0 ? tops.findLastIndex((top) => top < line) : tops.findIndex((top) => top >= line);
    const next = hunks[Math.min(Math.max(index + step, 0), hunks.length - 1)];
    if (!next) return;
    unfold(next);
    next.querySelector("a").focus({ preventScroll: true });
    next.scrollIntoView({ block: "start" });
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    if (event.key === "n" || event.key === "j") go(1);
    else if (event.key === "p" || event.key === "k") go(-1);
    else if (event.key === "t") switchTheme();
  });

  // On paper nothing is folded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open]):not(.why)")];
    for (const box of folded) box.open = true;
  });
  addEventListener("afterprint", () => { for (const box of folded) box.open = false; });
})();
