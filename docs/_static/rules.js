// The box above the table of rules: shows the rows that hold all the words that are typed.
document.addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("rule-filter");
    if (!box) return;
    const rows = [...document.querySelectorAll("article table tbody tr")];
    box.hidden = false;
    box.addEventListener("input", () => {
        const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
        for (const row of rows) {
            const text = row.textContent.toLowerCase();
            row.hidden = !words.every((word) => text.includes(word));
        }
    });
});
