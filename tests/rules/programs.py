"""Training programs put together at random, as pieces that :mod:`layouts` divides over files.

The programs run, with synthetic data, and print the loss of every step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random


@dataclass
class Piece:
    """A function, a class or a few statements that belong in one file.

    ``@name@`` in the rows stands for a name that another piece defines; ``<lazy>`` marks where a function could import.
    """

    kind: str
    rows: list[str]
    defines: tuple[str, ...]

    @property
    def uses(self) -> list[str]:
        found = re.findall(r"@(\w+)@", "\n".join(self.rows))
        return [name for name in dict.fromkeys(found) if name not in self.defines]


def inside(rows: list[str], times: int = 1) -> list[str]:
    return ["    " * times + row if row else row for row in rows]


# ---- the pieces ------------------------------------------------------------------------------------------------


class Pieces:
    """Draws one training program as pieces."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.pieces: list[Piece] = []
        self.shape: dict[str, object] = {}

    def pick(self, name: str, *choices: object) -> object:
        self.shape[name] = self.random.choice(choices)
        return self.shape[name]

    def add(self, kind: str, rows: list[str], *defines: str) -> None:
        self.pieces.append(Piece(kind, rows, defines))

    def draw(self) -> list[Piece]:
        self.config()
        self.model()
        self.data()
        self.optimizer()
        self.loss()
        self.utils()
        self.loop()
        return self.pieces

    def config(self) -> None:
        form = self.pick("config", "argparse", "dict", "dataclass", "namespace", "module")
        if form == "argparse":
            rows = ["def get_config():", "    <lazy>", "    parser = argparse.ArgumentParser()"]
            rows += ["    parser.add_argument('--lr', type=float, default=0.1)"]
            rows += ["    parser.add_argument('--epochs', type=int, default=2)"]
            rows += ["    parser.add_argument('--arch', default='net')", "    return parser.parse_args([])"]
        elif form == "dict":
            rows = ["class Box(dict):", "    def __getattr__(self, name):", "        return self[name]", "", ""]
            rows += ["def get_config():", "    <lazy>", "    return Box(lr=0.1, epochs=2, arch='net')"]
        elif form == "dataclass":
            rows = ["@dataclass", "class Config:", "    lr: float = 0.1", "    epochs: int = 2"]
            rows += ["    arch: str = 'net'", "", "", "def get_config():", "    return Config()"]
        elif form == "namespace":
            rows = ["def get_config():", "    return SimpleNamespace(lr=0.1, epochs=2, arch='net')"]
        else:
            rows = ["lr = 0.1", "epochs = 2", "arch = 'net'", "", "", "def get_config():"]
            rows += ["    return sys.modules[__name__]"]
        self.add("config", rows, "get_config")

    def model(self) -> None:
        base = self.pick("base", "nn.Module", "@Base@")
        if base == "@Base@":
            rows = ["class Base(nn.Module):", "    def __init__(self, width):", "        super().__init__()"]
            self.add("base", [*rows, "        self.width = width"], "Base")
        head = "super().__init__(8)" if base == "@Base@" else "super().__init__()"
        rows = [f"class Net({base}):", "    def __init__(self, out=3):", f"        {head}"]
        if self.pick("layers", "sequential", "plain") == "plain":
            rows += ["        self.one = nn.Linear(4, 8)", "        self.two = nn.Linear(8, out)", ""]
            rows += ["    def forward(self, x):", "        return self.two(torch.relu(self.one(x)))"]
        else:
            rows += ["        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, out))", ""]
            rows += ["    def forward(self, x):", "        return self.layers(x)"]
        self.add("model", rows, "Net")
        form = self.pick(
            "factory", "direct", "function", "dictionary", "decorator", "getattr", "branches", "classmethod"
        )
        self.make = {"direct": "@Net@()", "classmethod": "@Builder@.build(cfg)"}.get(str(form), "@build_model@(cfg)")
        if form == "function":
            rows = ["def build_model(cfg, out=3):", "    <lazy>", "    model = @Net@(out=out)", "    return model"]
        elif form == "dictionary":
            rows = ["MODELS = {'net': @Net@}", "", "", "def build_model(cfg):", "    return MODELS[cfg.arch]()"]
        elif form == "decorator":
            rows = ["REGISTRY = {}", "", "", "def register(name):", "    def wrap(cls):"]
            rows += ["        REGISTRY[name] = cls", "        return cls", "", "    return wrap"]
            self.add("registry", rows, "REGISTRY", "register")
            self.pieces[-2].rows.insert(0, "@@register@('net')")
            rows = ["def build_model(cfg):", "    <lazy>", "    return @REGISTRY@[cfg.arch]()"]
            # The class must have been imported for its name to be known.
            rows.insert(1, "    assert @Net@ is not None")
        elif form == "getattr":
            rows = [
                "class Zoo:",
                "    net = @Net@",
                "",
                "",
                "def build_model(cfg):",
                "    return getattr(Zoo, cfg.arch)()",
            ]
        elif form == "branches":
            rows = ["def build_model(cfg):", "    <lazy>", "    if cfg.arch == 'net':", "        return @Net@()"]
            rows += ["    elif cfg.arch == 'wide':", "        return @Net@(out=3)"]
            rows += ["    raise ValueError(cfg.arch)"]
        elif form == "classmethod":
            rows = ["class Builder:", "    @classmethod", "    def build(cls, cfg):", "        <lazy>"]
            self.add("factory", [*rows, "        return @Net@()"], "Builder")
            return
        if form != "direct":
            self.add("factory", rows, "build_model")

    def data(self) -> None:
        form = self.pick("data", "inline", "function", "pair", "class", "own")
        made = "TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))"
        self.needs_val = form == "pair"
        self.loader = ["loader = @get_loader@(cfg)"]
        if form == "inline":
            self.loader = [f"dataset = {made}", "loader = DataLoader(dataset, batch_size=8, shuffle=True)"]
            return
        rows = ["def get_loader(cfg, size=8):", "    <lazy>", f"    dataset = {made}"]
        if form == "own":
            own = ["class Points(Dataset):", "    def __init__(self):", "        self.x = torch.randn(32, 4)"]
            own += ["        self.y = torch.randint(0, 3, (32,))", "", "    def __len__(self):"]
            own += ["        return len(self.x)", "", "    def __getitem__(self, index):"]
            self.add("dataset", [*own, "        return self.x[index], self.y[index]"], "Points")
            rows[-1] = "    dataset = @Points@()"
        if form == "pair":
            rows += ["    val = DataLoader(dataset, batch_size=16)"]
            rows += ["    return DataLoader(dataset, size, shuffle=True), val"]
            self.loader = ["loader, val_loader = @get_loader@(cfg)"]
        elif form == "class":
            rows = ["class Data:", "    def __init__(self, cfg):", f"        self.dataset = {made}", ""]
            rows += ["    def train_loader(self):", "        <lazy>"]
            rows += ["        return DataLoader(self.dataset, batch_size=8, shuffle=True)"]
            self.loader = ["data = @Data@(cfg)", "loader = data.train_loader()"]
            self.add("data", rows, "Data")
            return
        else:
            rows += ["    return DataLoader(dataset, batch_size=size, shuffle=True)"]
        self.add("data", rows, "get_loader")

    def optimizer(self) -> None:
        form = self.pick("optimizer", "inline", "function", "groups", "getattr")
        self.optim = "@make_optimizer@(model, cfg)"
        if form == "inline":
            self.optim = "torch.optim.SGD(model.parameters(), lr=cfg.lr)"
            return
        rows = ["def make_optimizer(model, cfg):", "    <lazy>"]
        if form == "groups":
            helper = ["def groups(model):", "    decay, rest = [], []", "    for name, p in model.named_parameters():"]
            helper += ["        (rest if name.endswith('bias') else decay).append(p)"]
            helper += ["    return [{'params': decay, 'weight_decay': 1e-4}, {'params': rest}]"]
            self.add("groups", helper, "groups")
            rows += ["    return torch.optim.SGD(@groups@(model), lr=cfg.lr)"]
        elif form == "getattr":
            rows += ["    cls = getattr(torch.optim, 'SGD')", "    return cls(model.parameters(), lr=cfg.lr)"]
        else:
            rows += ["    return torch.optim.SGD(model.parameters(), lr=cfg.lr)"]
        self.add("optimizer", rows, "make_optimizer")

    def loss(self) -> None:
        form = self.pick("loss", "module", "functional", "helper")
        self.criterion = ["criterion = nn.CrossEntropyLoss()"] if form == "module" else []
        self.loss_of = {"module": "criterion(out, y)", "functional": "F.cross_entropy(out, y)"}.get(
            str(form), "@compute_loss@(out, y)"
        )
        if form == "helper":
            rows = ["def compute_loss(out, y):", "    <lazy>", "    return F.cross_entropy(out, y)"]
            self.add("loss", rows, "compute_loss")

    def utils(self) -> None:
        self.clip = str(self.pick("clip", "", "", "clip_grad_norm_(model.parameters(), 1.0)", "@clip@(model)"))
        if self.clip == "@clip@(model)":
            rows = ["def clip(model, norm=1.0):", "    nn.utils.clip_grad_norm_(model.parameters(), norm)"]
            self.add("clip", rows, "clip")
        self.meter = bool(self.pick("meter", False, True))
        if self.meter:
            rows = ["class Meter:", "    def __init__(self):", "        self.total, self.count = 0.0, 0", ""]
            rows += ["    def update(self, value, n=1):", "        self.total += value * n", "        self.count += n"]
            self.add("meter", rows, "Meter")
        self.save = bool(self.pick("save", False, False, True))
        if self.save:
            rows = ["def save(model, path='last.pt'):", "    <lazy>", "    torch.save(model.state_dict(), path)"]
            self.add("save", rows, "save")
        self.scheduler = bool(self.pick("scheduler", False, True))

    # ---- the loop ----------------------------------------------------------------------------------------------

    def step(self, own: str = "") -> list[str]:
        """One round of the loop over ``x, y``."""
        loss = f"loss = {self.loss_of}".replace("criterion", f"{own}criterion")
        accumulate = self.shape["accumulate"]
        rows = [f"out = {own}model(x)", loss]
        clear = f"{own}optimizer.zero_grad()"
        clip = [self.clip.replace("(model", f"({own}model")] if self.clip else []
        if accumulate:
            rows += ["(loss / 2).backward()" if self.random.random() < 0.5 else "loss = loss / 2"]
            rows += [] if rows[-1].endswith("backward()") else ["loss.backward()"]
            rows += ["if (i + 1) % 2 == 0:", *inside([*clip, f"{own}optimizer.step()", clear])]
        else:
            at = self.random.choice([0, 2])
            rows[at:at] = [clear]
            helper = self.pick("step", "inline", "helper")
            if helper == "helper" and not own:
                body = ["def backward_and_step(loss, optimizer, model):", "    <lazy>", "    loss.backward()"]
                self.add("step", [*body, *inside(clip), "    optimizer.step()"], "backward_and_step")
                rows += ["@backward_and_step@(loss, optimizer, model)"]
            else:
                rows += ["loss.backward()", *clip, f"{own}optimizer.step()"]
        rows += ["print('%.9g' % loss.item())"]
        return rows + ([f"{own}meter.update(loss.item(), x.size(0))"] if self.meter else [])

    def loop(self) -> None:
        form = self.pick("loop", "inline", "function", "class", "subclass", "fit")
        self.pick("accumulate", False, False, True)
        device = self.pick("device", False, True)
        start = ["cfg = @get_config@()", "torch.manual_seed(0)"]
        if device:
            start += ["device = 'cuda' if torch.cuda.is_available() else 'cpu'"]
        build = [*self.loader, f"model = {self.make}"]
        build[-1] += ".to(device)" if device else ""
        build += [f"optimizer = {self.optim}", *self.criterion]
        build += ["meter = @Meter@()"] if self.meter else []
        if self.scheduler:
            build += ["scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)"]
        end = ["    scheduler.step()"] if self.scheduler else []
        end += ["    @save@(model)"] if self.save else []
        to = ["x, y = x.to(device), y.to(device)"] if device else []
        evaluate = self.pick("evaluate", False, True)
        if evaluate:
            rows = ["@torch.no_grad()", "def evaluate(model, loader):", "    <lazy>", "    model.eval()"]
            rows += ["    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)"]
            self.add("evaluate", [*rows, "    model.train()", "    return right"], "evaluate")
            # A print of what depends on the rank would differ, and is not what this is about.
            end += ["    @evaluate@(model, loader)"]
        head = "for i, (x, y) in enumerate(loader):"
        if form == "inline":
            main = [
                *start,
                *build,
                "for epoch in range(cfg.epochs):",
                f"    {head}",
                *inside([*to, *self.step()], 2),
                *end,
            ]
        elif form == "function":
            given = ["model", "loader", "optimizer"]
            given += ["criterion"] if self.criterion else []
            given += ["meter"] if self.meter else []
            given += ["device"] if device else []
            rows = [f"def train_one_epoch({', '.join(given)}):", "    <lazy>", "    model.train()", f"    {head}"]
            self.add("loop", [*rows, *inside([*to, *self.step()], 2)], "train_one_epoch")
            call = f"    @train_one_epoch@({', '.join(given)})"
            main = [*start, *build, "for epoch in range(cfg.epochs):", call, *end]
        else:
            main = self.trainer(str(form), head, start, build, to, end, bool(device))
        style = self.pick("main", "function", "guard", "flat")
        if style == "function":
            rows = ["def main():", "    <lazy>", *inside(main), "", "", "if __name__ == '__main__':", "    main()"]
        elif style == "guard":
            rows = ["if __name__ == '__main__':", *inside(main)]
        else:
            rows = main
        self.add("main", rows, "")

    def trainer(
        self, form: str, head: str, start: list[str], build: list[str], to: list[str], end: list[str], device: bool
    ) -> list[str]:
        """A class whose methods hold the loop; with ``subclass``, the step is in a class of its own above."""
        names = ["model", "loader", "optimizer"]
        names += ["criterion"] if self.criterion else []
        names += ["meter"] if self.meter else []
        names += ["device"] if device else []
        init = [f"def __init__(self, {', '.join(names)}):", *[f"    self.{name} = {name}" for name in names]]
        to = [row.replace("device", "self.device") for row in to]
        head = head.replace("loader", "self.loader")
        step = self.step("self.")
        if form == "class":
            rows = ["class Trainer:", *inside(init), "", "    def train_epoch(self, epoch):", "        <lazy>"]
            self.add("loop", [*rows, f"        {head}", *inside([*to, *step], 3)], "Trainer")
        elif form == "fit":
            rows = ["class Trainer:", *inside(init), "", "    def step(self, i, x, y):", "        <lazy>"]
            rows += [*inside([*to, *step], 2), "", "    def train_epoch(self, epoch):", f"        {head}"]
            self.add("loop", [*rows, "            self.step(i, x, y)"], "Trainer")
        else:
            rows = ["class Loop:", *inside(init), "", "    def step(self, i, x, y):"]
            rows += ["        raise NotImplementedError", "", "    def train_epoch(self, epoch):", f"        {head}"]
            self.add("loop", [*rows, "            self.step(i, x, y)"], "Loop")
            rows = [
                "class Trainer(@Loop@):",
                "    def step(self, i, x, y):",
                "        <lazy>",
                *inside([*to, *step], 2),
            ]
            self.add("trainer", rows, "Trainer")
        made = f"runner = @Trainer@({', '.join(names)})"
        return [*start, *build, made, "for epoch in range(cfg.epochs):", "    runner.train_epoch(epoch)", *end]
