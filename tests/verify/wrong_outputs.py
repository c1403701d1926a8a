"""Wrong migrations that show in what a script prints and writes."""

from __future__ import annotations

from wrong import ALIKE, ALONE, AVERAGING, EVALUATION, GAN, LAUNCHED, PLAIN, TOGETHER, Wrong

TO_THE_END, TO_THE_END_TOGETHER = (*ALONE, "--full"), (*TOGETHER, "--full")
LOG = """\
        if amp.is_main_process():
            with open("out/log.csv", "a", newline="") as file:
                csv.writer(file).writerow([epoch + 1, train_loss, val_loss])
"""
WHOLE_LOG = """\
        with open("out/log.csv", "a", newline="") as file:
            csv.writer(file).writerow([epoch + 1, train_loss, val_loss])
"""
SAVED = 'torch.save({"model": amp.unwrap(model).state_dict(), "epoch": epoch, "best": best}, "out/best.pt")'
GUARDED = f"            if amp.is_main_process():\n                {SAVED}\n"
SUMS = """\
    total = amp.reduce_sum(total)
    correct = amp.reduce_sum(correct)
"""
SHOWN = "print("
SAVED_GAN = 'torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, "gan.pt")'
HALF_GAN = '{name: part.half().state_dict() for name, part in copies.items()}, "gan.pt"'
GUARDED_LINE = """\
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: validation {value:.4f}")
"""
LOADED = """    model.load_state_dict(torch.load("out/best.pt")["model"])\n"""

PRINTED = {
    "a line no longer printed": Wrong(
        EVALUATION,
        (
            ('                print("stopped early")\n', ""),
            ('    print(f"best: {evaluate(model, val_loader)[0]:.4f}")\n', "    evaluate(model, val_loader)\n"),
        ),
        "o0-printed",
        "best",
        "",
        TO_THE_END,
    ),
    "another number printed": Wrong(
        EVALUATION,
        (
            (
                "total / len(loader.dataset), correct / len(loader.dataset)\n\n\n@",
                "total / len(loader), correct / len(loader.dataset)\n\n\n@",
            ),
        ),
        "o0-printed",
        "train",
        SHOWN,
        TO_THE_END,
    ),
    "a share of a sum printed": Wrong(
        EVALUATION, ((SUMS, ""),), "together-printed", "train", SHOWN, TO_THE_END_TOGETHER, "unproved"
    ),
    "a count of one rank printed": Wrong(
        ALIKE,
        (("    left_out = amp.reduce_sum(left_out)\n", ""),),
        "together-printed",
        "left out",
        'print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {left_out} left out")',
        TO_THE_END_TOGETHER,
        verdict="unproved",
        missed="the ranks agree on it: a number of steps is 1/N of the original's, too, and rightly",
    ),
    "lines printed by all ranks": Wrong(
        LAUNCHED,
        (
            (
                GUARDED_LINE,
                GUARDED_LINE.replace("if dist.get_rank() == 0:", "if True:") + "        if dist.get_rank() == 0:\n",
            ),
        ),
        "together-printed",
        "validation",
        'print(f"epoch {epoch + 1}: validation {value:.4f}")',
        TO_THE_END_TOGETHER,
    ),
    "the average of other weights evaluated": Wrong(
        AVERAGING,
        (
            ("            update_average()\n", ""),
            (
                "            optimizer.zero_grad()\n",
                "            update_average()\n            optimizer.zero_grad()\n",
            ),
        ),
        "o0-printed",
        "average",
        'print(f"average: {F.cross_entropy(average(x), y).item():.4f}")',
        TO_THE_END,
    ),
}

WRITTEN = {
    "a checkpoint without a key": Wrong(
        EVALUATION,
        (('"epoch": epoch, "best": best}', '"epoch": epoch}'),),
        "o0-files",
        "best.pt",
        SAVED.replace('"epoch": epoch, "best": best}', '"epoch": epoch}'),
        TO_THE_END,
    ),
    "a checkpoint in half": Wrong(
        GAN,
        (
            (SAVED_GAN, f"torch.save({HALF_GAN})"),
            ("for epoch in range(2):\n", "import copy\n\nfor epoch in range(2):\n"),
            (
                "if amp.is_main_process():\n",
                'copies = copy.deepcopy({"generator": generator, "critic": critic})\nif amp.is_main_process():\n',
            ),
        ),
        "o0-files",
        "gan.pt",
        f"torch.save({HALF_GAN})",
        TO_THE_END,
    ),
    "a checkpoint of another shape": Wrong(
        GAN,
        (('"critic": critic.state_dict()', '"critic": critic[:1].state_dict()'),),
        "o0-files",
        "gan.pt",
        'torch.save({"generator": generator.state_dict(), "critic": critic[:1].state_dict()}, "gan.pt")',
        TO_THE_END,
    ),
    "a checkpoint under another name": Wrong(
        GAN, (('"gan.pt")', '"gan_amp.pt")'),), "o0-files", "gan.pt", "", TO_THE_END
    ),
    "module. before the names in a checkpoint": Wrong(
        EVALUATION,
        (
            (
                "amp.unwrap(model).state_dict()",
                "{PREFIX + key: value for key, value in amp.unwrap(model).state_dict().items()}",
            ),
            (LOADED, ""),
            ("def main():\n", "PREFIX = str()\n\n\ndef main():\n    global PREFIX\n"),
            (
                "    torch.manual_seed(5)\n",
                '    PREFIX = "module." * (amp.world_size() > 1)\n    torch.manual_seed(5)\n',
            ),
        ),
        "together-files",
        "module.",
        "",
        TO_THE_END_TOGETHER,
    ),
    "module. before the names in a script's own checkpoint": Wrong(
        LAUNCHED,
        (
            ("torch.save(model.module.state_dict()", "torch.save(model.state_dict()"),
            ("model.module.load_state_dict", "model.load_state_dict"),
        ),
        "o0-files",
        "module.",
        "",
        TO_THE_END_TOGETHER,
    ),
    "a checkpoint written by all ranks": Wrong(
        EVALUATION, ((GUARDED, f"            {SAVED}\n"),), "together-files", "best.pt", SAVED, TO_THE_END_TOGETHER
    ),
    "a checkpoint for each rank": Wrong(
        EVALUATION,
        ((GUARDED, f"            {SAVED}\n".replace('"out/best.pt"', 'f"out/best{amp.rank() or str()}.pt"')),),
        "together-files",
        "best1.pt",
        "",
        TO_THE_END_TOGETHER,
        "unproved",
    ),
    "a checkpoint of each rank's own weights": Wrong(
        AVERAGING,
        (
            (
                '        if amp.is_main_process():\n            torch.save({**state, "epoch": epoch + 1}, "last.pt")',
                '        if amp.world_size() == 1:\n            torch.save({**state, "epoch": epoch + 1}, "last.pt")',
            ),
        ),
        "together-files",
        "last.pt",
        "",
        TO_THE_END_TOGETHER,
    ),
    "log lines written twice": Wrong(
        EVALUATION,
        ((LOG, WHOLE_LOG),),
        "together-files",
        "log.csv",
        'with open("out/log.csv", "a", newline="") as file:',
        TO_THE_END_TOGETHER,
    ),
    "a log of each step that a rank cuts short": Wrong(
        EVALUATION,
        (('open("out/log.csv", "a", newline="")', 'open("out/log.csv", "w", newline="")'),),
        "o0-files",
        "log.csv",
        'with open("out/log.csv", "w", newline="") as file:',
        TO_THE_END,
    ),
    "an end with another status": Wrong(
        PLAIN,
        (("    main()\n", "    main()\n    raise SystemExit(3)\n"),),
        "runs",
        "ended with status 3",
        "",
        TO_THE_END,
    ),
    "an end that fails": Wrong(
        PLAIN, (("    main()\n", "    main()\n    print(loss)\n"),), "runs", "loss", "print(loss)", TO_THE_END
    ),
    "a training that ends early": Wrong(
        PLAIN, (("range(args.epochs)", "range(args.epochs - 1)"),), "o0-exact", "", "", TO_THE_END
    ),
}
