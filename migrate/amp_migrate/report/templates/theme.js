(() => {
  "use strict";
  let theme = null;
  try { theme = localStorage.getItem("amp-migrate-theme"); } catch { /* no storage here */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
