"""Wrong migrations that show in one process: autocast, scaling, and steps."""

from __future__ import annotations

from wrong import ACCUMULATION, ALONE, GAN, HALF, PLAIN, SAMPLING, Wrong

REGION = """\
            with amp.autocast():
                loss = F.cross_entropy(model(x), y)
"""
BACKWARD = "amp.scaler.scale(loss).backward()"
CLIPPED = """\
            amp.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
"""
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.2)"
REGION_G = """\
        with amp.autocast():
            loss_g = -critic(fake).mean()
"""
BACKWARD_C, BACKWARD_G = "amp.scaler.scale(loss_c).backward()", "amp.scaler.scale(loss_g).backward()"
STEP_C, STEP_G = "        amp.scaler.step(optimizer_c)\n", "        amp.scaler.step(optimizer_g)\n"
FORWARD = "        return self.second(torch.relu(self.norm(self.first(x))))\n"

AUTOCAST = {
    "autocast left out": Wrong(
        PLAIN,
        ((REGION, "            loss = F.cross_entropy(model(x), y)\n"),),
        "o1-half",
        "not under autocast",
        BACKWARD,
        HALF,
    ),
    "autocast left out of one of two losses": Wrong(
        GAN,
        (
            (REGION_G, "        loss_g = -critic(fake).mean()\n"),
            (
                "        with amp.autocast():\n            fake = generator(latent)\n",
                "        fake = generator(latent)\n        with amp.autocast():\n",
            ),
        ),
        "o1-half",
        "not under autocast",
        BACKWARD_G,
        HALF,
    ),
    "autocast around the backward pass": Wrong(
        PLAIN,
        ((f"{REGION}            {BACKWARD}\n", f"{REGION}                {BACKWARD}\n"),),
        "o1-half",
        "backward is called under autocast",
        BACKWARD,
        HALF,
        "unproved",
    ),
    "a count in the activation's type": Wrong(
        PLAIN,
        (
            (
                FORWARD,
                "        hidden = torch.relu(self.norm(self.first(x)))\n"
                "        count = hidden.new_zeros(())\n"
                "        for _ in range(512):\n"
                "            count = count + 1\n"
                "        return self.second(hidden) + (1 - count / 512) * torch.tensor([20.0, 0, 0])\n",
            ),
        ),
        "o1-band",
        "",
        BACKWARD,
        HALF,
    ),
    "an operation that raises in half": Wrong(
        PLAIN,
        (
            (
                FORWARD,
                "        hidden = torch.relu(self.norm(self.first(x)))\n"
                "        torch.mm(hidden.detach(), self.second.weight.detach().t(), out=torch.empty(len(x), 3))\n"
                "        return self.second(hidden)\n",
            ),
        ),
        "runs",
        "dtype",
        "torch.mm(hidden.detach(), self.second.weight.detach().t(), out=torch.empty(len(x), 3))",
        HALF,
    ),
}

SCALING = {
    "clipped before unscaled": Wrong(
        PLAIN,
        ((CLIPPED, "".join(reversed(CLIPPED.splitlines(keepends=True)))),),
        "o0-scaled",
        "while they are still scaled",
        BACKWARD,
    ),
    "unscale_ left out": Wrong(
        PLAIN,
        ((CLIPPED, f"            {CLIP}\n"),),
        "o0-scaled",
        "while they are still scaled",
        BACKWARD,
    ),
    "gradients read while scaled": Wrong(
        ACCUMULATION,
        (
            (
                "            amp.scaler.step(optimizer)\n",
                "            if max(parameter.grad.abs().max() for parameter in model.parameters()) < 100:\n"
                "                amp.scaler.step(optimizer)\n",
            ),
        ),
        "o0-scaled",
        "not at all",
        BACKWARD,
    ),
    "stepped on scaled gradients": Wrong(
        ACCUMULATION,
        (("amp.scaler.step(optimizer)", "optimizer.step()"),),
        "o0-scaled",
        "The optimizer steps on gradients that are still scaled",
        BACKWARD,
    ),
    "one of two optimizers steps without the scaler": Wrong(
        GAN,
        (("amp.scaler.step(optimizer_c)", "optimizer_c.step()"),),
        "o0-scaled",
        "The optimizer steps on gradients that are still scaled",
        BACKWARD_C,
    ),
    "every other loss not scaled": Wrong(
        ACCUMULATION,
        ((BACKWARD, "(loss if i % 2 else amp.scaler.scale(loss)).backward()"),),
        "o0-scaled",
        "is not scaled, and its gradients are divided",
        "(loss if i % 2 else amp.scaler.scale(loss)).backward()",
    ),
    "the loss of one of two models not scaled": Wrong(
        GAN,
        ((BACKWARD_G, "loss_g.backward()"),),
        "o0-scaled",
        "is not scaled, and its gradients are divided",
        "loss_g.backward()",
    ),
    "unscaled twice": Wrong(
        PLAIN,
        (
            (
                CLIPPED,
                CLIPPED + "            for parameter in model.parameters():\n"
                "                parameter.grad /= float(amp.scaler.get_scale())\n",
            ),
        ),
        "o0-scaled",
        "unscaled twice",
        BACKWARD,
    ),
    "a penalty on scaled gradients": Wrong(
        GAN,
        (("torch.autograd.grad(critic(mixed).sum()", "torch.autograd.grad(amp.scaler.scale(critic(mixed).sum())"),),
        "o0-scaled",
        "the loss of step 1 ",
        BACKWARD_C,
    ),
    "a scaled loss is shown": Wrong(
        PLAIN,
        ((f"            {BACKWARD}\n", "            loss = amp.scaler.scale(loss)\n            loss.backward()\n"),),
        "o0-scaled-printed",
        "before it is scaled",
        'print(f"epoch {epoch + 1}: loss {loss.item():.4f}")',
        (*ALONE, "--full"),
    ),
    "a scale of one's own besides": Wrong(
        PLAIN,
        ((BACKWARD, "amp.scaler.scale(loss * 8).backward()"),),
        "o0-exact",
        "8 times as large",
        "amp.scaler.scale(loss * 8).backward()",
    ),
    "update() left out": Wrong(
        ACCUMULATION, (("            amp.scaler.update()\n", ""),), "scaler-updates", "update()", BACKWARD
    ),
}

STEPS = {
    "step taken twice": Wrong(
        PLAIN,
        (("            amp.scaler.step(optimizer)\n", "            amp.scaler.step(optimizer)\n" * 2),),
        "o0-exact",
        "step twice, in the original once",
        BACKWARD,
    ),
    "zero_grad left out": Wrong(
        PLAIN, (("            optimizer.zero_grad()\n", ""),), "o0-exact", "not cleared", BACKWARD
    ),
    "zero_grad of the other optimizer": Wrong(
        GAN,
        (("        optimizer_c.zero_grad()\n", "        optimizer_g.zero_grad()\n"),),
        "o0-exact",
        "norm",
        BACKWARD_C,
    ),
    "random numbers drawn at the start": Wrong(
        PLAIN,
        (("    model = amp.prepare_model(Net())\n", "    torch.rand(1)\n    model = amp.prepare_model(Net())\n"),),
        "o0-exact",
        "The loss of step 1 ",
        BACKWARD,
    ),
    "random numbers drawn in a step": Wrong(
        SAMPLING,
        ((f"        {BACKWARD}\n", f"        {BACKWARD}\n        torch.rand(1)\n"),),
        "o0-exact",
        "The loss of step 2 ",
        BACKWARD,
    ),
    "divided twice by the accumulation steps": Wrong(
        ACCUMULATION,
        (("amp.scaler.scale(loss)", "amp.scaler.scale(loss / steps_per_update)"),),
        "o0-exact",
        "It is 2 times smaller",
        "amp.scaler.scale(loss / steps_per_update).backward()",
    ),
    "updated after every batch": Wrong(
        ACCUMULATION,
        (("if (i + 1) % steps_per_update == 0:", "if True:"),),
        "o0-exact",
        "step once, in the original not at all",
        BACKWARD,
    ),
    "optimizers in another order": Wrong(
        GAN,
        (
            (STEP_C, ""),
            (STEP_G, STEP_G + STEP_C),
        ),
        "o0-exact",
        "not at all",
        BACKWARD_C,
    ),
    "an option of the optimizer left out": Wrong(
        GAN, (("lr=0.01, betas=(0.5, 0.9)", "lr=0.01"),), "o0-exact", "The original is reproducible", BACKWARD_C
    ),
    "a graph that is gone when it is used": Wrong(
        GAN,
        (("loss_c = critic(fake.detach()).mean()", "loss_c = critic(fake).mean()"),),
        "runs",
        "second time",
        BACKWARD_G,
    ),
    "the schedule steps once an epoch": Wrong(
        SAMPLING,
        (("        scheduler.step()\n", "    scheduler.step()\n"),),
        "o0-exact",
        "The loss of step ",
        BACKWARD,
    ),
}
