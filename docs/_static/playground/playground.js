// The page's side: hands the text to the worker when typing pauses, and shows what comes back.
const PAUSE = 300;
const PATIENCE = 20_000;
// From docs/_static/playground: pages of other languages lie deeper than the rules do.
const RULES = new URL("../../rules/", import.meta.url);

const root = document.getElementById("playground");
const words = JSON.parse(root.dataset.words);
const box = root.querySelector("textarea");
const status = root.querySelector(".status");
const list = root.querySelector(".findings");
const mode = root.querySelector("form");

let worker, sent = 0, waiting = false, again = false, timer, watch;

// One of the words, with what its holes are filled with.
function worded(name, filled) {
    return words[name].replace(/\{(\w+)\}/g, (_, hole) => filled[hole]);
}

function say(text) {
    status.textContent = text;
}

function startWorker() {
    worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => {
        if (data.ready) return;
        if (data.number !== undefined && data.number !== sent) return;
        clearTimeout(watch);
        waiting = false;
        if (data.error) say(worded("does_not_start", { reason: data.error }));
        else if (!again) show(data);
        if (again) ask();
    };
    worker.onerror = (event) => say(worded("does_not_start", { reason: event.message || words.refused }));
}

function ask() {
    if (waiting) {
        again = true;
        return;
    }
    again = false;
    waiting = true;
    sent += 1;
    const chosen = new FormData(mode);
    worker.postMessage({
        number: sent,
        text: box.value,
        level: chosen.get("level"),
        dtype: chosen.get("dtype"),
        device: chosen.get("device"),
        ddp: chosen.has("ddp"),
    });
    // The first answer waits for Python to be loaded.
    if (sent > 1) watch = setTimeout(restart, PATIENCE);
}

function restart() {
    worker.terminate();
    waiting = false;
    sent = 0;
    say(words.too_long);
    startWorker();
}

function show({ findings, problem }) {
    list.replaceChildren(...findings.map(item));
    if (problem) say(problem.line ? worded("problem", problem) : problem.message);
    else if (!findings.length) say(words.nothing);
    else say(findings.length === 1 ? words.one : worded("many", { count: findings.length }));
    root.dataset.judged = sent;
}

function item(finding) {
    const row = document.createElement("li");
    row.className = finding.severity;
    const place = document.createElement("button");
    place.type = "button";
    place.textContent = worded("line", { line: finding.from[0] });
    place.addEventListener("click", () => select(finding));
    const rule = document.createElement("a");
    rule.href = new URL(`${finding.code}.html`, RULES).href;
    rule.target = "_blank";
    rule.textContent = `${finding.code} ${finding.name}`;
    const severity = document.createElement("span");
    severity.textContent = words[finding.severity];
    const message = document.createElement("p");
    message.textContent = finding.message;
    row.append(place, rule, severity, message);
    if (finding.advice) {
        const advice = document.createElement("p");
        advice.className = "advice";
        advice.textContent = finding.advice;
        row.append(advice);
    }
    return row;
}

// Columns count characters from 1, and a text box counts UTF-16 units from 0.
function offset(lines, [line, column]) {
    const before = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
    return before + [...lines[line - 1]].slice(0, column - 1).join("").length;
}

function select(finding) {
    const lines = box.value.split("\n");
    if (finding.to[0] > lines.length) return;
    box.focus();
    box.setSelectionRange(offset(lines, finding.from), offset(lines, finding.to));
    const height = parseFloat(getComputedStyle(box).lineHeight);
    box.scrollTop = Math.max(0, (finding.from[0] - 4) * height);
}

function later() {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE);
}

if (location.protocol === "file:") {
    say(words.needs_server);
} else {
    box.addEventListener("input", later);
    mode.addEventListener("change", later);
    say(words.loading);
    startWorker();
    ask();
}
