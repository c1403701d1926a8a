"""A grammar of training scripts: each feature is a way in which real scripts differ, and a script is a choice of each.

The first choice of every feature is the plainest one, so that hypothesis shrinks a failing script to the features that
it takes to fail.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, fields

from hypothesis import strategies as st

CHOICES: dict[str, tuple[str, ...]] = {
    # How the script is laid out.
    "layout": ("flat", "guard", "function", "epoch_function", "trainer"),
    "seeding": ("torch", "function", "per_epoch"),
    # Data.
    "dataset": ("tensors", "augmented", "list", "numpy_augmented"),
    "split": ("none", "random_split", "slices", "shuffled_indices"),
    "loading": ("shuffle", "in_order", "drop_last", "weighted", "collate", "workers"),
    "iteration": ("for", "enumerate", "iter_next", "batches_function"),
    # Models.
    "model": ("linear", "batch_norm", "dropout", "two_parts", "own_buffer", "embedding", "recurrent"),
    "initial_weights": ("default", "apply", "copied"),
    "frozen": ("none", "first_layer", "until_second_epoch"),
    # Losses.
    "loss": ("cross_entropy", "mse", "sum", "smoothed", "module"),
    "extra_loss": ("none", "weight_penalty", "consistency", "second_output"),
    "noise": ("none", "inputs", "mixup", "targets"),
    # Optimizers and steps.
    "optimizer": ("sgd", "momentum", "adam", "groups", "two", "list"),
    "zero_grad": ("before", "after", "model", "set_to_none"),
    "step": ("plain", "accumulate", "alias", "guarded", "twice", "helper"),
    "gradients": ("none", "clip_norm", "clip_value", "clip_by_hand", "noise", "log_norm", "centred"),
    "skipping": ("none", "not_finite", "large_loss", "small_batch"),
    "schedule": ("none", "per_epoch", "per_step", "one_cycle", "lambda", "plateau_train", "plateau_val", "by_hand"),
    "averages": ("none", "ema_model", "ema_by_hand", "swa"),
    "weights_touched": ("none", "noise_each_epoch", "clamped", "pruned"),
    # What is measured and when training ends.
    "metric": ("none", "mean_loss", "accuracy_of_dataset", "accuracy_of_batches", "meter"),
    "evaluation": ("none", "each_epoch", "in_steps", "helper"),
    "stopping": ("none", "patience_val", "patience_train", "enough_steps", "target_loss"),
    # Files.
    "saving": ("none", "last", "best", "rotation", "with_optimizer"),
    "resuming": ("none", "best_at_end", "if_exists"),
    "log": ("none", "append", "held_open", "json", "csv"),
    # The way it is written.
    "printing": ("epoch", "steps", "nothing", "formatted"),
    "device": ("none", "variable", "conditional"),
    "imports": ("nn", "names", "aliases"),
    "context": ("none", "try", "with"),
}
"""Each feature with its choices."""


@dataclass(frozen=True)
class Script:
    """One training script: a choice for each feature of :data:`CHOICES`."""

    layout: str = "flat"
    seeding: str = "torch"
    dataset: str = "tensors"
    split: str = "none"
    loading: str = "shuffle"
    iteration: str = "for"
    model: str = "linear"
    initial_weights: str = "default"
    frozen: str = "none"
    loss: str = "cross_entropy"
    extra_loss: str = "none"
    noise: str = "none"
    optimizer: str = "sgd"
    zero_grad: str = "before"
    step: str = "plain"
    gradients: str = "none"
    skipping: str = "none"
    schedule: str = "none"
    averages: str = "none"
    weights_touched: str = "none"
    metric: str = "none"
    evaluation: str = "none"
    stopping: str = "none"
    saving: str = "none"
    resuming: str = "none"
    log: str = "none"
    printing: str = "epoch"
    device: str = "none"
    imports: str = "nn"
    context: str = "none"

    def text(self) -> str:
        """The source of the script; it needs no arguments, and trains for about a second."""
        return _Writer(self).text()

    @property
    def features(self) -> str:
        """What is not plain, in one line."""
        chosen = {item.name: getattr(self, item.name) for item in fields(self)}
        return " ".join(f"{name}={choice}" for name, choice in chosen.items() if choice != CHOICES[name][0]) or "plain"


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Scripts of which about a third of the features are not plain, as in real ones."""
    chosen = {}
    for name, choices in CHOICES.items():
        if draw(st.integers(0, 2)) == 2:
            chosen[name] = draw(st.sampled_from(choices[1:]))
    return Script(**chosen)


class _Writer:
    """Writes the parts of a script one after the other."""

    def __init__(self, script: Script) -> None:
        self.s = script
        s = script
        self.nn = {"nn": "nn", "names": "nn", "aliases": "N"}[s.imports]
        self.functional = {"nn": "F", "names": "F", "aliases": "torch.nn.functional"}[s.imports]
        self.to = "" if s.device == "none" else ".to(device)"
        self.own = "self." if s.layout == "trainer" else ""
        self.validates = s.split != "none"

    def text(self) -> str:
        set_up, epochs, end = self._set_up(), self._epochs(), self._end()
        layout = self.s.layout
        head = [*self._imports(), *self._definitions(), ""]
        if layout == "flat":
            rows = [*self._seeds(), *set_up, *epochs, *end]
        elif layout == "guard":
            rows = ["if __name__ == '__main__':", *_in([*self._seeds(), *set_up, *epochs, *end])]
        elif layout == "trainer":
            rows = [
                "class Trainer:",
                *_in(["def __init__(self):", *_in(set_up), "", "def fit(self):", *_in([*epochs, *end])]),
                "",
                *self._seeds(),
                "Trainer().fit()",
            ]
        else:
            rows = ["def main():", *_in([*self._seeds(), *set_up, *epochs, *end]), "", "main()"]
        return "\n".join([*head, *rows]) + "\n"

    # ---- the head ----------------------------------------------------------------------------------------------------

    def _imports(self) -> list[str]:
        rows = ["import copy, csv, json, os, random", "import numpy as np", "import torch"]
        rows += {
            "nn": ["import torch.nn as nn", "import torch.nn.functional as F"],
            "names": ["from torch import nn", "from torch.nn import functional as F"],
            "aliases": ["import torch.nn as N"],
        }[self.s.imports]
        rows.append(
            "from torch.utils.data import "
            "DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler, random_split"
        )
        return rows

    def _seeds(self) -> list[str]:
        if self.s.seeding == "function":
            return ["set_seed(3)"]
        return ["torch.manual_seed(3)", "random.seed(3)", "np.random.seed(3)"]

    def _definitions(self) -> list[str]:
        rows = ["", "EPOCHS = 3", ""]
        if self.s.seeding == "function":
            rows += [
                "def set_seed(seed):",
                *_in(["random.seed(seed)", "np.random.seed(seed)", "torch.manual_seed(seed)"]),
                "",
            ]
        rows += self._dataset_class() + self._model_class()
        if self.s.initial_weights == "apply":
            rows += _block(
                f"""
                def init_weights(module):
                    if isinstance(module, {self.nn}.Linear):
                        {self.nn}.init.xavier_uniform_(module.weight)
                """
            )
        if self.s.iteration == "batches_function":
            rows += ["def batches(loader):", *_in(["for item in loader:", "    yield item"]), ""]
        if self.s.metric == "meter":
            rows += _block(
                """
                class Meter:
                    def __init__(self):
                        self.total, self.count = 0.0, 0

                    def update(self, value, n=1):
                        self.total += value * n
                        self.count += n

                    @property
                    def mean(self):
                        return self.total / max(1, self.count)
                """
            )
        if self.s.loading == "collate":
            rows += _block(
                """
                def collate(items):
                    return torch.stack([x for x, _ in items]), torch.stack([torch.as_tensor(y) for _, y in items])
                """
            )
        if self.s.step == "helper":
            rows += ["def update(optimizer):", *_in(["optimizer.step()"]), ""]
        if self.s.evaluation == "helper":
            rows += [
                "@torch.no_grad()",
                "def evaluate(model, loader, device=None):",
                *_in(self._evaluate("model", "loader")),
                "",
            ]
        return rows

    def _dataset_class(self) -> list[str]:
        draw = {
            "augmented": "x = x + 0.01 * torch.randn(x.shape)",
            "numpy_augmented": "x = x * float(np.random.uniform(0.95, 1.05))",
        }.get(self.s.dataset)
        if draw is None:
            return []
        return _block(
            f"""
            class Augmented(Dataset):
                def __init__(self, x, y):
                    self.x, self.y = x, y

                def __len__(self):
                    return len(self.x)

                def __getitem__(self, i):
                    x = self.x[i]
                    {draw}
                    return x, self.y[i]
            """
        )

    def _model_class(self) -> list[str]:
        nn, s = self.nn, self.s
        layers = {
            "linear": [f"self.a = {nn}.Linear(8, 16)"],
            "batch_norm": [f"self.a = {nn}.Sequential({nn}.Linear(8, 16), {nn}.BatchNorm1d(16))"],
            "dropout": [f"self.a = {nn}.Sequential({nn}.Linear(8, 16), {nn}.Dropout(0.1))"],
            "two_parts": [f"self.a = {nn}.Sequential({nn}.Linear(8, 12), {nn}.Tanh(), {nn}.Linear(12, 16))"],
            "own_buffer": [f"self.a = {nn}.Linear(8, 16)", "self.register_buffer('mean', torch.zeros(16))"],
            "embedding": [f"self.e = {nn}.Embedding(5, 8)", f"self.a = {nn}.Linear(8, 16)"],
            "recurrent": [f"self.r = {nn}.GRU(8, 8, batch_first=True)", f"self.a = {nn}.Linear(8, 16)"],
        }[s.model]
        forward = {
            "own_buffer": [
                "h = self.a(x)",
                "if self.training:",
                "    with torch.no_grad():",
                "        self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)",
                "h = h - self.mean",
            ],
            "embedding": ["h = self.a(x + self.e((x[:, 0] > 0).long()))"],
            "recurrent": ["h, _ = self.r(x.unsqueeze(1))", "h = self.a(h[:, -1])"],
        }.get(s.model, ["h = self.a(x)"])
        out = (
            "return self.b(torch.relu(h)), self.c(h)"
            if s.extra_loss == "second_output"
            else "return self.b(torch.relu(h))"
        )
        if s.extra_loss == "second_output":
            layers.append(f"self.c = {nn}.Linear(16, 1)")
        return [
            f"class Net({nn}.Module):",
            *_in(["def __init__(self):", *_in(["super().__init__()", *layers, f"self.b = {nn}.Linear(16, 3)"])]),
            "",
            *_in(["def forward(self, x):", *_in([*forward, out])]),
            "",
        ]

    # ---- set-up ------------------------------------------------------------------------------------------------------

    def _set_up(self) -> list[str]:
        s, own = self.s, self.own
        rows = {
            "none": [],
            "variable": ["device = torch.device('cpu')"],
            "conditional": ["device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')"],
        }[s.device]
        if rows and own:
            rows = [*rows, "self.device = device"]
        rows += ["x = torch.randn(96, 8)", "y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()"]
        if s.loss == "mse":
            rows.append("y = torch.nn.functional.one_hot(y, 3).float()")
        rows.append(
            {
                "tensors": "dataset = TensorDataset(x, y)",
                "list": "dataset = [(x[i], y[i]) for i in range(len(x))]",
            }.get(s.dataset, "dataset = Augmented(x, y)")
        )
        rows += {
            "none": ["train_set = dataset"],
            "random_split": ["train_set, val_set = random_split(dataset, [72, 24])"],
            "slices": ["train_set, val_set = Subset(dataset, range(72)), Subset(dataset, range(72, 96))"],
            "shuffled_indices": [
                "order = list(range(96))",
                "random.shuffle(order)",
                "train_set, val_set = Subset(dataset, order[:72]), Subset(dataset, order[72:])",
            ],
        }[s.split]
        rows.append(f"{own}loader = {self._loader()}")
        if self.validates:
            rows.append(f"{own}val_loader = DataLoader(val_set, batch_size=8)")
        rows.append(f"{own}model = Net(){self.to}")
        rows += self._prepared_weights()
        rows += self._optimizers()
        if s.loss == "module":
            rows.append(f"{own}criterion = {self.nn}.CrossEntropyLoss()")
        if s.averages == "ema_model":
            rows += [
                f"{own}ema = copy.deepcopy({own}model)",
                f"for p in {own}ema.parameters():",
                "    p.requires_grad_(False)",
            ]
        elif s.averages == "ema_by_hand":
            rows.append(f"{own}shadow = [p.detach().clone() for p in {own}model.parameters()]")
        elif s.averages == "swa":
            rows.append(f"{own}swa = torch.optim.swa_utils.AveragedModel({own}model)")
        if s.resuming == "if_exists":
            rows += ["if os.path.exists('start.pt'):", f"    {own}model.load_state_dict(torch.load('start.pt'))"]
        rows += self._first_counts()
        return rows

    def _loader(self) -> str:
        options = {
            "shuffle": "batch_size=8, shuffle=True",
            "in_order": "batch_size=8",
            "drop_last": "batch_size=7, shuffle=True, drop_last=True",
            "weighted": "batch_size=8, sampler=WeightedRandomSampler([1.0] * len(train_set), len(train_set))",
            "collate": "8, True, collate_fn=collate",
            "workers": "batch_size=8, shuffle=True, num_workers=1",
        }[self.s.loading]
        return f"DataLoader(train_set, {options})"

    def _prepared_weights(self) -> list[str]:
        own, rows = self.own, []
        if self.s.initial_weights == "apply":
            rows.append(f"{own}model.apply(init_weights)")
        elif self.s.initial_weights == "copied":
            rows.append(f"{own}model.load_state_dict(Net().state_dict())")
        if self.s.frozen != "none":
            rows += [f"for p in {own}model.a.parameters():", "    p.requires_grad_(False)"]
        return rows

    def _optimizers(self) -> list[str]:
        own, name = self.own, f"{self.own}optimizer"
        first, rest = f"{own}model.a.parameters()", f"{own}model.b.parameters()"
        more = [f"{own}model.{part}.parameters()" for part in self._other_parts()]
        rest = " + ".join([f"list({item})" for item in [rest, *more]]) if more else rest
        everything = f"{own}model.parameters()"
        rows = {
            "sgd": [f"{name} = torch.optim.SGD({everything}, lr=0.05)"],
            "momentum": [f"{name} = torch.optim.SGD({everything}, lr=0.02, momentum=0.9, weight_decay=1e-4)"],
            "adam": [f"{name} = torch.optim.Adam({everything}, lr=0.01)"],
            "groups": [
                f"{name} = torch.optim.AdamW([{{'params': {first}}}, {{'params': {rest}, 'lr': 0.02}}], lr=0.01)"
            ],
            "two": [f"{name} = torch.optim.SGD({first}, lr=0.05)", f"{own}second = torch.optim.Adam({rest}, lr=0.01)"],
            "list": [f"{own}optimizers = [torch.optim.SGD({first}, lr=0.05), torch.optim.SGD({rest}, lr=0.02)]"],
        }[self.s.optimizer]
        scheduled = f"{own}optimizers[0]" if self.s.optimizer == "list" else name
        made = {
            "per_epoch": f"StepLR({scheduled}, 1, 0.5)",
            "per_step": f"CosineAnnealingLR({scheduled}, EPOCHS * len({own}loader))",
            "one_cycle": f"OneCycleLR({scheduled}, 0.1, epochs=EPOCHS, steps_per_epoch=len({own}loader))",
            "lambda": f"LambdaLR({scheduled}, lambda step: 1 / (1 + step))",
            "plateau_train": f"ReduceLROnPlateau({scheduled}, patience=0, threshold=0.2)",
            "plateau_val": f"ReduceLROnPlateau({scheduled}, patience=0, threshold=0.2)",
        }.get(self.s.schedule)
        if made is not None:
            rows.append(f"{own}scheduler = torch.optim.lr_scheduler.{made}")
        return rows

    def _other_parts(self) -> list[str]:
        parts = {"embedding": ["e"], "recurrent": ["r"]}.get(self.s.model, [])
        return [*parts, *(["c"] if self.s.extra_loss == "second_output" else [])]

    def _first_counts(self) -> list[str]:
        own, s, rows = self.own, self.s, []
        if (
            s.step in ("accumulate", "alias")
            or s.stopping == "enough_steps"
            or s.printing == "steps"
            or s.evaluation == "in_steps"
        ):
            rows.append(f"{own}steps = 0")
        if s.step == "alias" and s.optimizer not in ("two", "list"):
            rows.append(f"{own}do_step = {own}optimizer.step")
        if s.saving == "best" or s.stopping.startswith("patience"):
            rows += [f"{own}best = float('inf')", f"{own}bad = 0"]
        if s.log == "held_open":
            rows.append(f"{own}log = open('log.txt', 'w')")
        elif s.log == "csv":
            rows += [
                f"{own}file = open('log.csv', 'w', newline='')",
                f"{own}rows = csv.writer({own}file)",
                f"{own}rows.writerow(['epoch', 'loss'])",
            ]
        elif s.log == "json":
            rows.append(f"{own}history = []")
        return rows

    # ---- training ----------------------------------------------------------------------------------------------------

    def _epochs(self) -> list[str]:
        s, own = self.s, self.own
        before = ["total, correct, seen, count = 0.0, 0, 0, 0"]
        if s.seeding == "per_epoch":
            before.append("torch.manual_seed(100 + epoch)")
        if s.metric == "meter":
            before.append("meter = Meter()")
        if s.frozen == "until_second_epoch":
            before += ["if epoch == 1:", f"    for p in {own}model.a.parameters():", "        p.requires_grad_(True)"]
        before.append(f"{own}model.train()")
        body = [*before, *self._loop(), *self._after_epoch()]
        if s.context == "with":
            body = ["with torch.enable_grad():", *_in(body)]
        elif s.context == "try":
            body = ["try:", *_in(body), "except KeyboardInterrupt:", "    print('stopped')"]
        return ["for epoch in range(EPOCHS):", *_in(body)]

    def _loop(self) -> list[str]:
        own = self.own
        loader = f"batches({own}loader)" if self.s.iteration == "batches_function" else f"{own}loader"
        step = self._batch()
        if self.s.iteration == "iter_next":
            return [f"it = iter({loader})", f"for i in range(len({loader})):", *_in(["xb, yb = next(it)", *step])]
        if self.s.iteration == "enumerate":
            return [f"for i, (xb, yb) in enumerate({loader}):", *_in(step)]
        return [f"for xb, yb in {loader}:", *_in(step)]

    def _batch(self) -> list[str]:
        s, own = self.s, self.own
        rows = []
        if s.device != "none":
            device = "self.device" if own else "device"
            rows.append(f"xb, yb = xb.to({device}), yb.to({device})")
        if s.skipping == "small_batch":
            rows += ["if len(xb) < 2:", "    continue"]
        rows += {
            "none": [],
            "inputs": ["xb = xb + 0.01 * torch.randn_like(xb)"],
            "mixup": ["mix = random.uniform(0.9, 1.0)", "xb = mix * xb + (1 - mix) * xb[torch.randperm(len(xb))]"],
            "targets": ["xb = xb * (torch.rand(len(xb), 1) > 0.05)"],
        }[s.noise]
        if s.zero_grad != "after" and s.step != "accumulate":
            rows += self._cleared()
        rows += self._loss()
        if s.skipping == "not_finite":
            rows += ["if not torch.isfinite(loss):", "    continue"]
        elif s.skipping == "large_loss":
            rows += ["if loss.item() > 2.0:", "    continue"]
        rows.append("(loss / 2).backward()" if s.step == "accumulate" else "loss.backward()")
        rows += self._update()
        return [*rows, *self._counted()]

    def _loss(self) -> list[str]:
        s, own, f = self.s, self.own, self.functional
        two = s.extra_loss == "second_output"
        rows = [f"out, extra = {own}model(xb)" if two else f"out = {own}model(xb)"]
        rows.append(
            "loss = "
            + {
                "cross_entropy": f"{f}.cross_entropy(out, yb)",
                "mse": f"{f}.mse_loss(out, yb)",
                "sum": f"{f}.cross_entropy(out, yb, reduction='sum') / 8",
                "smoothed": f"{f}.cross_entropy(out, yb, label_smoothing=0.1)",
                "module": f"{own}criterion(out, yb)",
            }[s.loss]
        )
        rows += {
            "none": [],
            "weight_penalty": [f"loss = loss + 1e-3 * sum(p.pow(2).sum() for p in {own}model.parameters())"],
            "consistency": [f"loss = loss + 0.1 * (out - {own}model(xb * 1.01)).pow(2).mean()"],
            "second_output": ["loss = loss + 0.1 * extra.pow(2).mean()"],
        }[s.extra_loss]
        return rows

    @property
    def _stepped(self) -> list[str]:
        own = self.own
        return {"two": [f"{own}optimizer", f"{own}second"], "list": ["o"]}.get(self.s.optimizer, [f"{own}optimizer"])

    def _of_each(self, rows: list[str]) -> list[str]:
        """What is done to each optimizer, in a loop where there is a list of them."""
        return [f"for o in {self.own}optimizers:", *_in(rows)] if self.s.optimizer == "list" else rows

    def _cleared(self) -> list[str]:
        if self.s.zero_grad == "model":
            return [f"{self.own}model.zero_grad()"]
        argument = "set_to_none=False" if self.s.zero_grad == "set_to_none" else ""
        return self._of_each([f"{name}.zero_grad({argument})" for name in self._stepped])

    def _update(self) -> list[str]:
        s, own = self.s, self.own
        steps = {
            "helper": [f"update({name})" for name in self._stepped],
            "guarded": [row for name in self._stepped for row in (f"if {name} is not None:", f"    {name}.step()")],
        }.get(s.step, [f"{name}.step()" for name in self._stepped])
        rows = [*self._touched_gradients(), *self._of_each(steps)]
        if s.step == "alias" and s.optimizer not in ("two", "list"):
            rows = [*self._touched_gradients(), f"{own}do_step()"]
        if s.step == "twice":
            rows += [*self._cleared(), *self._loss(), "loss.backward()", *self._of_each(steps)]
        if s.schedule in ("per_step", "one_cycle"):
            rows.append(f"{own}scheduler.step()")
        if s.averages == "ema_model":
            rows += [
                "with torch.no_grad():",
                f"    for q, p in zip({own}ema.parameters(), {own}model.parameters()):",
                "        q.lerp_(p, 0.1)",
            ]
        elif s.averages == "ema_by_hand":
            rows += [
                f"for q, p in zip({own}shadow, {own}model.parameters()):",
                "    q.mul_(0.9).add_(p.detach(), alpha=0.1)",
            ]
        elif s.averages == "swa":
            rows.append(f"{own}swa.update_parameters({own}model)")
        if s.weights_touched == "clamped":
            rows += ["with torch.no_grad():", f"    {own}model.b.weight.clamp_(-1, 1)"]
        if s.zero_grad == "after" or s.step == "accumulate":
            rows += self._cleared()
        if s.step == "accumulate":
            rows = [f"{own}steps += 1", f"if {own}steps % 2 == 0:", *_in(rows)]
        elif f"{own}steps = 0" in self._first_counts():
            rows.append(f"{own}steps += 1")
        return rows

    def _touched_gradients(self) -> list[str]:
        own = self.own
        each = f"for p in {own}model.parameters():"
        return {
            "none": [],
            "clip_norm": [f"torch.nn.utils.clip_grad_norm_({own}model.parameters(), 0.5)"],
            "clip_value": [f"torch.nn.utils.clip_grad_value_({own}model.parameters(), 0.1)"],
            "clip_by_hand": [each, "    if p.grad is not None:", "        p.grad.data.clamp_(-0.1, 0.1)"],
            "noise": [each, "    if p.grad is not None:", "        p.grad += 0.001"],
            "log_norm": [
                f"norm = sum(p.grad.norm() ** 2 for p in {own}model.parameters() if p.grad is not None) ** 0.5",
                "seen += int(norm > 0.01)",
            ],
            "centred": [
                each,
                "    if p.grad is not None and p.dim() > 1:",
                "        p.grad = p.grad - p.grad.mean(1, keepdim=True)",
            ],
        }[self.s.gradients]

    def _counted(self) -> list[str]:
        s, own = self.s, self.own
        rows = ["total += loss.item()", "count += 1"]
        if s.metric.startswith("accuracy"):
            target = "yb.argmax(1)" if s.loss == "mse" else "yb"
            rows += [f"correct += (out.argmax(1) == {target}).sum().item()", "seen += len(yb)"]
        elif s.metric == "meter":
            rows.append("meter.update(loss.item(), len(xb))")
        if s.printing == "steps":
            rows += [f"if {own}steps % 5 == 0:", f"    print('step', {own}steps, f'{{loss.item():.4f}}')"]
        if s.evaluation == "in_steps" and self.validates:
            rows += [f"if {own}steps % 4 == 0:", *_in([*self._evaluation(), f"{own}model.train()"])]
        if s.stopping == "enough_steps":
            rows += [f"if {own}steps >= 8:", "    break"]
        elif s.stopping == "target_loss":
            rows += ["if loss.item() < 0.3:", "    break"]
        return rows

    # ---- between epochs ----------------------------------------------------------------------------------------------

    def _evaluate(self, model: str, loader: str) -> list[str]:
        out = f"{model}(xv)[0]" if self.s.extra_loss == "second_output" else f"{model}(xv)"
        criterion = f"{self.functional}.mse_loss" if self.s.loss == "mse" else f"{self.functional}.cross_entropy"
        return [
            f"{model}.eval()",
            "val_total, val_count = 0.0, 0",
            f"for xv, yv in {loader}:",
            f"    val_total += {criterion}({out}, yv).item() * len(xv)",
            "    val_count += len(xv)",
            "return val_total / val_count",
        ]

    def _evaluation(self) -> list[str]:
        own = self.own
        if self.s.evaluation == "helper":
            return [f"val = evaluate({own}model, {own}val_loader)"]
        rows = self._evaluate(f"{own}model", f"{own}val_loader")
        return ["with torch.no_grad():", *_in(rows[:-1]), "val = val_total / val_count"]

    @property
    def _has_val(self) -> bool:
        return self.validates and self.s.evaluation in ("each_epoch", "helper")

    def _after_epoch(self) -> list[str]:
        s, own = self.s, self.own
        rows = ["mean = total / max(1, count)"]
        if self._has_val:
            rows += self._evaluation()
        measured = "val" if self._has_val else "mean"
        if s.schedule in ("per_epoch", "lambda"):
            rows.append(f"{own}scheduler.step()")
        elif s.schedule == "plateau_train":
            rows.append(f"{own}scheduler.step(mean)")
        elif s.schedule == "plateau_val":
            rows.append(f"{own}scheduler.step({measured})")
        elif s.schedule == "by_hand":
            rows += self._of_each(
                [
                    row
                    for name in self._stepped
                    for row in (f"for group in {name}.param_groups:", "    group['lr'] *= 0.7")
                ]
            )
        if s.weights_touched == "noise_each_epoch":
            rows += [
                "with torch.no_grad():",
                f"    for p in {own}model.parameters():",
                "        p.add_(0.001 * torch.randn_like(p))",
            ]
        elif s.weights_touched == "pruned":
            rows += ["with torch.no_grad():", f"    w = {own}model.b.weight", "    w.mul_((w.abs() > 0.01).float())"]
        rows += [*self._printed(), *self._logged(), *self._saved(measured)]
        if s.stopping in ("patience_val", "patience_train"):
            watched = measured if s.stopping == "patience_val" else "mean"
            rows += [
                f"if {watched} < {own}best - 0.05:",
                f"    {own}best, {own}bad = {watched}, 0",
                "else:",
                f"    {own}bad += 1",
            ]
            rows += [f"if {own}bad >= 1:", "    break"]
        return rows

    def _printed(self) -> list[str]:
        s = self.s
        if s.printing == "nothing":
            return []
        shown = ["'epoch', epoch"]
        if s.metric == "accuracy_of_dataset":
            shown.append(f"'accuracy', round(correct / len({self.own}loader.dataset), 4)")
        elif s.metric == "accuracy_of_batches":
            shown.append("'accuracy', round(correct / max(1, seen), 4)")
        elif s.metric == "meter":
            shown.append("'loss', round(meter.mean, 4)")
        elif s.metric == "mean_loss":
            shown.append(f"'loss', round(total / len({self.own}loader), 4)")
        if self._has_val:
            shown.append("'val', round(val, 4)")
        if s.printing == "formatted":
            return ["print(f'epoch {epoch}: {mean:.4f}')", f"print({', '.join(shown)})"]
        return [f"print({', '.join(shown)})"]

    def _logged(self) -> list[str]:
        own = self.own
        return {
            "none": [],
            "append": ["with open('log.txt', 'a') as f:", "    f.write(f'{epoch}\\n')"],
            "held_open": [f"{own}log.write(f'{{epoch}}\\n')", f"{own}log.flush()"],
            "json": [
                f"{own}history.append(epoch)",
                "with open('history.json', 'w') as f:",
                f"    json.dump({own}history, f)",
            ],
            "csv": [f"{own}rows.writerow([epoch, 'loss'])"],
        }[self.s.log]

    def _saved(self, measured: str) -> list[str]:
        own = self.own
        state = f"{own}model.state_dict()"
        if self.s.saving == "best" and not self.s.stopping.startswith("patience"):
            return [f"if {measured} < {own}best:", f"    {own}best = {measured}", f"    torch.save({state}, 'best.pt')"]
        return {
            "none": [],
            "last": [f"torch.save({state}, 'last.pt')"],
            "best": [f"if {measured} < {own}best:", f"    torch.save({state}, 'best.pt')"],
            "rotation": [
                f"torch.save({state}, f'epoch{{epoch}}.pt')",
                "if os.path.exists(f'epoch{epoch - 2}.pt'):",
                "    os.remove(f'epoch{epoch - 2}.pt')",
            ],
            "with_optimizer": [
                "os.makedirs('out', exist_ok=True)",
                f"torch.save({{'model': {state}, 'epoch': epoch}}, os.path.join('out', 'last.pt'))",
            ],
        }[self.s.saving]

    def _end(self) -> list[str]:
        s, own = self.s, self.own
        rows = {"held_open": [f"{own}log.close()"], "csv": [f"{own}file.close()"]}.get(s.log, [])
        if s.resuming == "best_at_end" and s.saving in ("best", "last"):
            rows = [*rows, f"{own}model.load_state_dict(torch.load('{s.saving}.pt'))"]
        return [*rows, "print('done')"]


def _in(rows: list[str]) -> list[str]:
    return ["    " + row if row else row for row in rows]


def _block(text: str) -> list[str]:
    return [*textwrap.dedent(text).strip("\n").split("\n"), ""]
