"""Wrong migrations that show in several processes: what all processes decide alike, and calls that all have to make."""

from __future__ import annotations

from wrong import ALIKE, AVERAGING, EVALUATION, TOGETHER, Wrong

VALIDATION = "    val_loader = DataLoader(val_set, batch_size=4)\n"
SHARED_VALIDATION = "    val_loader = amp.prepare_loader(DataLoader(val_set, batch_size=4))\n"
SUMS = """\
    total = amp.reduce_sum(total)
    correct = amp.reduce_sum(correct)
"""
EVALUATED = """\
        correct += (output.argmax(1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def main():
"""

DECISIONS = {
    "a validation share that is not summed": Wrong(
        EVALUATION, ((VALIDATION, SHARED_VALIDATION),), "runs", "", "", (*TOGETHER, "--full")
    ),
    "early stopping and schedule by a rank's own loss": Wrong(
        EVALUATION,
        (
            (VALIDATION, SHARED_VALIDATION),
            (EVALUATED, EVALUATED.replace("len(loader.dataset)", "(len(loader) * 4)")),
        ),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "a schedule that one rank steps": Wrong(
        EVALUATION,
        (
            (
                "        scheduler.step(val_loss)\n",
                "        if amp.is_main_process():\n            scheduler.step(val_loss)\n",
            ),
        ),
        "steering",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "early stopping on one rank": Wrong(
        EVALUATION,
        (("            if bad >= 2:\n", "            if bad >= 2 and amp.is_main_process():\n"),),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "a collective behind a guard": Wrong(
        EVALUATION,
        (
            (
                SUMS,
                f"    if amp.is_main_process():\n        {SUMS.strip()}\n".replace(
                    "\n    correct", "\n        correct"
                ),
            ),
        ),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "a barrier on one rank": Wrong(
        EVALUATION,
        (("    amp.barrier()\n", "    if amp.is_main_process():\n        amp.barrier()\n        amp.barrier()\n"),),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "steps left out by a rank's own loss": Wrong(
        ALIKE,
        (("if amp.reduce_mean(loss.item()) > 1.9:", "if loss.item() > 1.9:"),),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "a choice drawn by each rank": Wrong(
        ALIKE,
        (("amp.drawn_alike(random.choice)([0, 1])", "random.choice([0, 1])"),),
        "steering",
        "different parameters",
        "head = random.choice([0, 1])",
        (*TOGETHER, "--full"),
        "unproved",
    ),
    "noise on weights drawn by each rank": Wrong(
        ALIKE,
        (
            (
                "    perturb(model)\n",
                "    amp.seed_by_rank()\n    perturb(model)\n    amp.seed_alike()\n",
            ),
        ),
        "ranks-agree",
        "differ",
        "parameter.mul_(0.98).add_(torch.randn_like(parameter), alpha=0.01)",
        (*TOGETHER, "--full"),
    ),
    "labels in the order of a set": Wrong(
        ALIKE,
        (("enumerate(amp.same_order(set(names)))", "enumerate(set(names))"),),
        "contents",
        "in another order",
        "numbers = {name: number for number, name in enumerate(set(names))}",
        TOGETHER,
    ),
    "resumed on one rank": Wrong(
        AVERAGING,
        (('    if os.path.exists("last.pt"):\n', '    if os.path.exists("last.pt") and amp.is_main_process():\n'),),
        "runs",
        "",
        "",
        (*TOGETHER, "--full"),
    ),
    "an optimizer's state resumed on one rank": Wrong(
        AVERAGING,
        (
            (
                '        optimizer.load_state_dict(state["optimizer"])\n',
                "        optimizer.state.clear()\n"
                "        if amp.is_main_process():\n"
                '            optimizer.load_state_dict(state["optimizer"])\n',
            ),
        ),
        "ranks-agree",
        "differ",
        "",
        (*TOGETHER, "--full"),
    ),
}
