// Python and the linter, beside the page: a text comes in, what the linter finds goes out.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const here = new URL(".", import.meta.url);

async function start() {
    const [python, linter] = await Promise.all([
        loadPyodide({ indexURL: new URL("pyodide/", here).href }),
        fetch(new URL("amp_lint.zip", here)).then((answer) => {
            if (!answer.ok) throw new Error(`amp_lint.zip: ${answer.status}`);
            return answer.arrayBuffer();
        }),
    ]);
    python.unpackArchive(linter, "zip", { extractDir: "/linter" });
    python.runPython("import sys; sys.path.insert(0, '/linter')");
    return python.pyimport("linting").lint;
}

const started = start();
started.then(
    () => postMessage({ ready: true }),
    (error) => postMessage({ error: String(error) }),
);

onmessage = async ({ data: { number, text, level, dtype, device, ddp } }) => {
    try {
        const lint = await started;
        postMessage({ number, ...JSON.parse(lint(text, level, dtype, device, ddp)) });
    } catch (error) {
        postMessage({ number, error: String(error) });
    }
};
