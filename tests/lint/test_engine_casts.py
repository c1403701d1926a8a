"""The types that the linter gives operations, against those that torch gives them."""

from __future__ import annotations

import pytest
import torch
from abstractly import CPU, CUDA, Mode, abstractly, dtype_bit, run_for_real
from amp_rules.lattice.abstract_values import names_of
from amp_rules.lattice.operation_names import ELEMENTWISE, REDUCTIONS, RENAMED, VIEWS
from amp_rules.torch import casts

# Without autocast torch's own CPU says it all.
HALF = Mode("O3", "fp16", "cpu")

COMPOSED = {
    # Made of other operations, whose kernels do the casting.
    "normalize": "linalg_vector_norm", "softmin": "softmax", "gumbel_softmax": "softmax", "square": "pow",
    "pairwise_distance": "linalg_vector_norm", "interpolate": "upsample_nearest2d", "upsample": "upsample_nearest2d",
    "local_response_norm": "pow", "lstm": "lstm_cell", "gru": "gru_cell", "rnn": "rnn_tanh_cell",
    "multi_head_attention": "linear", "multi_dot": "linalg_multi_dot", "vecdot": "linalg_vecdot",
    "vector_norm": "linalg_vector_norm", "matrix_norm": "linalg_matrix_norm", "frobenius_norm": "frobenius_norm",
    "cross_entropy": "nll_loss", "grid_sample": "grid_sampler",
}  # fmt: skip
COMPOSED_ON_CPU = {
    **COMPOSED, "einsum": "bmm", "tensordot": "mm", "inner": "mm", "chain_matmul": "mm", "multi_dot": "mm",
    "lstm": "mkldnn_rnn_layer", "rnn": "mm", "cross_entropy": "cross_entropy_loss", "mv": "mm", "addmv": "mm",
    "addr": "mm", "inv": "inverse", "pinv": "pinverse", "solve": "linalg_solve", "lstsq": "linalg_lstsq",
    "eigh": "linalg_eigh", "eigvalsh": "linalg_eigvalsh", "fft": "fft_fft", "ifft": "fft_ifft", "rfft": "fft_rfft",
    "irfft": "fft_irfft", "istft": "fft_irfft",
}  # fmt: skip


def registered(key: str) -> set[str]:
    """The operations, without overloads, that have a kernel for a dispatch key."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.partition("::")[2].partition(".")[0] for name in names if name.startswith("aten::")}


def plain(name: str) -> str:
    """An operation as the tables call it."""
    for prefix in ("linalg_", "fft_", "_"):
        name = name.removeprefix(prefix)
    return {"grid_sampler": "grid_sample", "cross_entropy_loss": "cross_entropy"}.get(name, name)


@pytest.mark.parametrize(
    ("key", "tables", "composed"),
    [
        ("AutocastCUDA", (casts.CUDA_LOWER, casts.CUDA_FLOAT32, casts.CUDA_WIDEST, casts.CUDA_REFUSED), COMPOSED),
        ("AutocastCPU", (casts.CPU_LOWER, casts.CPU_FLOAT32, casts.CPU_WIDEST), COMPOSED_ON_CPU),
    ],
    ids=["cuda", "cpu"],
)
def test_every_entry_of_a_table_has_a_kernel(key: str, tables: tuple[frozenset[str], ...], composed: dict[str, str]):
    have = registered(key)
    for name in frozenset().union(*tables):
        kernel = composed.get(name, name)
        known = {kernel, f"linalg_{kernel}", f"fft_{kernel}", f"_{kernel}"}
        exists = any(hasattr(torch.ops.aten, item) for item in known)
        assert known & have or not exists, name


@pytest.mark.parametrize(
    ("key", "tables"),
    [
        ("AutocastCUDA", casts.CUDA_LOWER | casts.CUDA_FLOAT32 | casts.CUDA_WIDEST | casts.CUDA_REFUSED),
        ("AutocastCPU", casts.CPU_LOWER | casts.CPU_FLOAT32 | casts.CPU_WIDEST),
    ],
    ids=["cuda", "cpu"],
)
def test_every_kernel_is_in_a_table_or_its_operation_is_unknown(key: str, tables: frozenset[str]):
    known = VIEWS | ELEMENTWISE | REDUCTIONS
    missing = {name for name in map(plain, registered(key)) if name in known and name not in tables}
    renamed = {RENAMED.get(name, name) for name in tables}
    assert not missing - renamed


def test_the_tables_do_not_overlap():
    for tables in (
        (casts.CUDA_LOWER, casts.CUDA_FLOAT32, casts.CUDA_WIDEST, casts.CUDA_REFUSED),
        (casts.CPU_LOWER, casts.CPU_FLOAT32, casts.CPU_WIDEST, casts.CPU_REFUSED),
    ):
        assert sum(map(len, tables)) == len(frozenset().union(*tables))


PRELUDE = """
def f(a):
    h = a.{half}()
    s = a.float()
    d = a.double()
    i = (a * 0).long()
    b = a > 0
    z = torch.tensor(2.0)
    zh = torch.tensor(2.0).{half}()
    zd = torch.tensor(2.0).double()
    zi = torch.tensor(2)
    {body}
"""
EXPRESSIONS = r"""
h.sum()
h.sum(-1)
h.sum(dim=1, keepdim=True)
torch.sum(h)
h.sum(dtype=torch.float16)
h.sum(-1, dtype=torch.float32)
h.nansum()
h.mean()
h.mean(-1)
torch.mean(h, dim=1)
h.mean(dtype=torch.float32)
h.nanmean()
h.var()
h.var(-1)
h.std()
torch.std(h, -1)
h.norm()
h.norm(dim=-1)
h.norm(p=1)
torch.norm(h, dim=1)
torch.linalg.norm(h)
torch.linalg.norm(h, dim=-1)
torch.linalg.vector_norm(h)
torch.linalg.matrix_norm(h)
F.normalize(h)
F.normalize(h, dim=-1)
h.prod()
h.prod(0)
h.cumsum(0)
torch.cumsum(h, dim=0)
h.cumprod(0)
h.logcumsumexp(0)
h.logsumexp(-1)
torch.logsumexp(h, dim=-1)
h.exp()
torch.exp(h)
h.exp2()
h.expm1()
h.log()
h.log1p()
h.log2()
h.log10()
torch.logaddexp(h, h)
h ** 2
h.pow(2)
torch.pow(h, 2)
h ** 0.5
h ** -1
2 ** h
h ** h
torch.pow(2, h)
h * h
h.square()
torch.square(h)
h.sqrt()
h.rsqrt()
torch.rsqrt(h)
h.reciprocal()
1 / h
1.0 / h
h / 2
h / h
h // 2
h % 2
h.softmax(-1)
F.softmax(h, dim=-1)
torch.softmax(h, -1)
F.softmax(h, dim=-1, dtype=torch.float16)
F.softmax(h, -1, dtype=torch.float32)
torch.softmax(h, -1, torch.float32)
h.softmax(-1).to(h.dtype)
h.softmax(-1).type_as(h)
nn.Softmax(dim=-1)(h)
h.log_softmax(-1)
F.log_softmax(h, dim=-1)
nn.LogSoftmax(-1)(h)
F.gumbel_softmax(h)
F.softmin(h, dim=-1)
h.sigmoid()
torch.sigmoid(h)
F.sigmoid(h)
nn.Sigmoid()(h)
F.logsigmoid(h)
h.tanh()
F.gelu(h)
nn.GELU()(h)
F.softplus(h)
nn.Softplus()(h)
F.silu(h)
F.relu(h)
h.relu()
nn.ReLU()(h)
F.leaky_relu(h, 0.1)
F.elu(h)
F.hardtanh(h)
F.hardsigmoid(h)
F.mish(h)
F.threshold(h, 0.1, 0.2)
h.erf()
h.erfinv()
h.atan()
torch.atan2(h, h)
torch.atan2(h, s)
h.acos()
h.asin()
h.cos()
h.sin()
h.tan()
h.sinh()
h.cosh()
h + 1
h + 1.5
1 - h
h + h
h + s
s + h
h * s
h - d
h + i
i + h
i + 1
i + 1.5
i / 2
i / i
i * 0.5
i // 2
i ** 2
b + 1
b * h
b & b
~b
b.sum()
i.sum()
b.float().sum()
i.float().mean()
b.cumsum(0)
i.cumsum(0)
i.prod()
i.exp()
i.sqrt()
i.sigmoid()
torch.softmax(i.float(), -1)
-h
abs(h)
h.abs()
h.neg()
h.sign()
h.round()
h.floor()
h.clamp(min=0.1)
h.clamp(0.0, 1.0)
torch.clamp(h, max=1)
h.clamp_min(1e-6)
i.clamp(min=0)
h.max()
h.max(-1)[0]
h.max(-1)[1]
h.max(-1).values
h.max(-1).indices
h.min(dim=-1)[0]
torch.max(h, -1)[0]
torch.max(h, h)
torch.max(h, s)
torch.maximum(h, s)
h.amax(-1)
h.amin()
h.median()
h.median(-1)[0]
h.argmax(-1)
h.argsort(-1)
h.topk(2)[0]
h.topk(2)[1]
h.topk(2).values
h.topk(2).indices
h.sort(-1)[0]
h.sort(-1).indices
torch.sort(h, -1)[1]
h.kthvalue(1)[0]
h == 1
h > s
h.isnan()
torch.isfinite(h)
h.any()
h @ h
h @ s
s @ s
torch.matmul(h, s)
torch.mm(s, s)
h.mm(s)
h[None].bmm(s[None])
torch.bmm(s[None], s[None])
torch.einsum("ij,jk->ik", s, s)
torch.einsum("ij->i", s)
torch.tensordot(h, s, 1)
torch.tensordot(s, s, 1)
torch.dot(h[0], h[0])
torch.dot(s[0], s[0])
torch.mv(s, s[0])
torch.outer(h[0], h[0])
torch.outer(h[0], s[0])
torch.inner(h, h)
torch.inner(s, s)
torch.kron(h, h)
torch.addmm(s, s, s)
torch.addmm(h, s, h)
torch.baddbmm(s[None], s[None], s[None])
torch.addcmul(h, s, h)
torch.addcmul(h, h, h)
torch.addcdiv(h, s, h)
torch.lerp(h, h, 0.5)
torch.cross(h[:, :3], s[:, :3], dim=-1)
torch.chain_matmul(s, s)
torch.linalg.multi_dot([s, s])
torch.linalg.vecdot(s, s)
F.linear(s, s)
F.linear(h, s)
F.linear(h, s, s[0])
nn.Linear(4, 4)(s)
nn.Linear(4, 4)(h)
F.bilinear(h, h, s[None])
nn.Bilinear(4, 4, 3)(h, h)
F.scaled_dot_product_attention(s[None], s[None], s[None])
F.conv1d(s[None], s[:, :, None])
F.conv2d(s[None, None], s[None, None, :2, :2])
F.conv_transpose2d(s[None, None], s[None, None])
nn.Conv1d(4, 4, 1)(s[None])
nn.Conv2d(1, 2, 1)(s[None, None])
nn.Conv2d(1, 2, 1)(h[None, None])
nn.ConvTranspose2d(1, 2, 1)(s[None, None])
F.prelu(s, s[0])
nn.PReLU()(s)
nn.PReLU()(h)
F.layer_norm(h, (4,))
F.layer_norm(s, (4,))
nn.LayerNorm(4)(h)
nn.GroupNorm(2, 4)(h)
F.group_norm(h, 2)
F.rms_norm(h, (4,))
nn.RMSNorm(4)(h)
nn.BatchNorm1d(4)(h)
nn.BatchNorm1d(4)(s)
F.instance_norm(h[None])
nn.InstanceNorm1d(4)(h[None])
F.local_response_norm(h[None], 2)
F.mse_loss(h, h)
F.mse_loss(h, s)
nn.MSELoss()(h, h)
F.l1_loss(h, h)
F.l1_loss(h, h, reduction="none")
nn.L1Loss()(h, s)
F.smooth_l1_loss(h, h)
F.huber_loss(h, h)
F.binary_cross_entropy(s.sigmoid(), s.sigmoid())
F.binary_cross_entropy_with_logits(h, h)
nn.BCEWithLogitsLoss()(h, s)
F.cross_entropy(h, i[0])
nn.CrossEntropyLoss()(h, i[0])
F.cross_entropy(h, s.softmax(-1))
F.nll_loss(h, i[0])
F.nll_loss(h.log_softmax(-1), i[0])
F.kl_div(h, h)
nn.KLDivLoss()(h, h)
F.cosine_similarity(h, h)
nn.CosineSimilarity()(h, h)
F.pairwise_distance(h, h)
torch.cdist(h, h)
torch.dist(h, h)
F.gaussian_nll_loss(h, h, h.abs())
F.triplet_margin_loss(h, h, h)
F.margin_ranking_loss(h, h, h)
F.cosine_embedding_loss(h, h, h[:, 0])
F.hinge_embedding_loss(h, h)
F.soft_margin_loss(h, h)
F.poisson_nll_loss(h, h)
h.masked_fill(b, -1e4)
h.masked_fill(b, float("-inf"))
i.masked_fill(b, 0)
torch.where(b, h, 0.0)
torch.where(b, h, s)
torch.where(b, h, h)
torch.where(b, s, h)
torch.where(b, h, torch.tensor(0.0))
torch.where(b, 1.0, 0.0)
torch.where(b, i, 0)
h.where(b, s)
torch.full_like(h, 1.0)
torch.zeros_like(h)
torch.zeros_like(i)
torch.ones_like(h, dtype=torch.float32)
torch.ones_like(h, dtype=s.dtype)
torch.rand_like(h)
torch.randn_like(s)
h.new_zeros(3)
h.new_full((2,), 1.0)
h.new_tensor([1.0])
h.new_ones(2, dtype=torch.long)
s.new_zeros(3, 3)
torch.zeros(3)
torch.ones(3, dtype=h.dtype)
torch.zeros(3, dtype=torch.long)
torch.full((2,), 1.0)
torch.full((2,), 1)
torch.full((2,), True)
torch.full((2,), 1, dtype=torch.float32)
torch.arange(4)
torch.arange(4.0)
torch.arange(0, 4, 0.5)
torch.arange(4, dtype=torch.float32)
torch.linspace(0, 1, 4)
torch.tensor(1.0)
torch.tensor(1)
torch.tensor(True)
torch.tensor([1.0, 2.0])
torch.tensor([1, 2])
torch.tensor([1, 2.0])
torch.tensor([[1.0], [2.0]])
torch.tensor([[1], [2]])
torch.tensor([1], dtype=torch.float16)
torch.eye(3)
torch.rand(3)
torch.randint(0, 4, (3,))
torch.randperm(3)
torch.empty(3)
torch.scalar_tensor(1.0)
torch.as_tensor(1.0)
torch.as_tensor(h)
h + torch.tensor(1.0)
h * torch.tensor(2.0)
h + torch.ones(4)
h + torch.zeros(1)
h + torch.arange(4)
h * z
h * zd
h + zi
i + z
i * zh
zh * z
zh + s
z + h
zi + h
zi / zi
zi + 1.5
z.exp()
h / h.sum()
h / h.sum(-1, keepdim=True)
h / (h.sum(-1, keepdim=True) + 1e-6)
h - h.mean()
h * h.std()
(h - h.mean(-1, keepdim=True)) ** 2
torch.sqrt(h.var(-1) + 1e-5)
h - h.max(-1, keepdim=True)[0]
h - h.amax(-1, keepdim=True)
torch.exp(h - h.amax(-1, keepdim=True))
h.exp() / h.exp().sum(-1, keepdim=True)
torch.log(h.softmax(-1) + 1e-6)
torch.cat([h, s])
torch.cat([h, h])
torch.cat((h, i))
torch.stack([h, s])
torch.stack([h, h], dim=1)
torch.cat([s, d])
torch.hstack([h, h])
torch.vstack([h, s])
h.view(-1)
h.reshape(2, 8)
h.t()
h.T
h[0]
h[:, 1:]
h[b]
h[i[0]]
h[..., None]
h.flatten(0)
h.permute(1, 0)
h.unsqueeze(0).expand(2, 4, 4)
h.chunk(2)[0]
h.chunk(2, dim=-1)[1]
h.split(2)[0]
h.unbind(0)[0]
torch.split(h, 2)[1]
h.gather(1, i)
h.index_select(0, i[0])
h.masked_select(b)
h.repeat(2, 1)
h.clone()
h.detach()
h.contiguous()
h.to(torch.float32)
h.to(s.dtype)
h.to(s)
h.to(dtype=s.dtype)
s.to(h)
s.to(torch.half)
s.to(h.dtype)
h.to(h.device)
h.to(h.device, torch.float32)
h.type(torch.float32)
h.type_as(s)
s.type_as(h)
s.type(h.dtype)
h.float()
s.half() if h.dtype == torch.float16 else s.bfloat16()
h.double()
h.long()
h.int()
h.bool()
h.byte()
h.cpu() if False else h
h.float().sum()
h.float() @ s
h.float() @ s.float()
h.float() * h
h.float().exp().to(h.dtype)
h.double() @ h.double()
d @ d
d.exp()
d.sum()
d.softmax(-1)
d + h
d * s
F.linear(d, d)
F.interpolate(h[None, None], scale_factor=2)
F.interpolate(h[None, None], scale_factor=2, mode="bilinear")
nn.Upsample(scale_factor=2)(h[None, None])
F.grid_sample(h[None, None], h[None, :, :2].reshape(1, 2, 2, 2))
F.grid_sample(h[None, None], s[None, :, :2].reshape(1, 2, 2, 2))
F.avg_pool2d(h[None, None], 2)
F.adaptive_avg_pool2d(h[None, None], 1)
F.max_pool2d(h[None, None], 2)
nn.MaxPool2d(2)(h[None, None])
F.embedding(i[0], h)
nn.Embedding(5, 4)(i)
F.dropout(h)
nn.Dropout(0.1)(h)
nn.Identity()(h)
nn.Flatten()(h[None])
nn.Sequential(nn.Linear(4, 4), nn.ReLU())(s)
nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))(s)
nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))(s)
F.pad(h, (1, 1))
F.pad(h, (1, 1), mode="reflect")
F.pad(h[None], (1, 1), "replicate")
F.max_pool3d(h[None, None, None], (1, 2, 2))
nn.AvgPool3d(1)(h[None, None, None])
F.glu(h)
F.one_hot(i)
torch.bincount(i.view(-1))
torch.multinomial(h.softmax(-1), 1)
torch.bernoulli(h.sigmoid())
torch.fft.fft(s)
torch.linalg.inv(s)
torch.linalg.svd(s)[1]
torch.linalg.det(s)
torch.trace(h)
h.trace()
torch.quantile(s, 0.5)
torch.triu(h)
torch.tril(torch.ones(4, 4))
torch.diag(h)
torch.cumsum(b, 0)
torch.cumsum(b.float(), 0)
torch.nan_to_num(h)
torch.renorm(h, 2, 0, 1.0)
torch.logit(h)
torch.special.expit(h)
torch.xlogy(h, h)
torch.hypot(h, h)
torch.fmod(h, 2)
torch.remainder(h, 2)
torch.true_divide(h, 2)
torch.divide(h, 2)
torch.multiply(h, s)
torch.subtract(h, s)
torch.flip(h, [0])
torch.roll(h, 1)
torch.meshgrid(h[0], h[0], indexing="ij")[0]
torch.broadcast_tensors(h, h[0])[0]
h.item() if False else 1.0
h.size(0)
h.numel()
h.dim()
h.shape[0]
math.sqrt(4)
len(h)
h * math.sqrt(4)
h * 4 ** -0.5
h / math.sqrt(h.size(-1))
h * (h.shape[-1] ** -0.5)
h.scatter_add(1, i, h)
h.scatter(1, i, 1.0)
h.scatter(1, i, h)
h.index_add(0, i[0], h)
h.index_fill(0, i[0], 1.0)
h.index_put((i[0],), h)
h.lerp(h, 0.5)
h.add(1)
h.mul(s)
h.sub(h, alpha=2)
h.div(s)
h.add(s)
h.addmm(s, s)
h.matmul(s)
h.maximum(s)
h.eq(1)
h.ge(0)
h.logical_not()
sum([h, h])
sum([h, s])
max(1, 2) * h
h if h.dtype == torch.float32 else s
torch.atleast_2d(h)
torch.isclose(h, h)
torch.allclose(h, h)
torch.std_mean(h)[0]
torch.var_mean(h)[1]
torch.aminmax(h)[0]
torch.addmv(s[0], s, s[0])
torch.addr(s, s[0], s[0])
torch.mul(h, 2)
torch.add(h, s)
torch.div(h, 2)
torch.sub(h, 1)
torch.neg(h)
torch.einsum("ij,ij->i", h, s)
torch.view_as_complex(s.reshape(4, 2, 2))
F.unfold(h[None, None], 2)
F.softmax(h.float(), dim=-1).to(h.dtype)
F.softmax(h.float(), dim=-1).type_as(s)
(h * b).sum() / b.sum()
(h * b.float()).sum()
b.float() * h
b.to(h.dtype) * h
i.to(h.dtype) + h
b.half().sum()
(i == 1).float()
(i == 1).sum()
(i == 1).float().mean()
h[:, 0] + s[:, 0]
torch.zeros(4, 4, device=h.device) + h
torch.zeros(4, 4, dtype=h.dtype) + h
h + 1j if False else h
h.new_tensor(3.0)
torch.nn.functional.softmax(h, 1).sum()
nn.functional.cross_entropy(h, i[0], reduction="none")
F.nll_loss(h, i[0], reduction="none")
F.mse_loss(h, h, reduction="none")
torch.nn.utils.rnn.pad_sequence([h, h])
nn.Tanh()(h)
nn.Hardtanh()(h)
nn.LeakyReLU()(h)
nn.AvgPool2d(2)(h[None, None])
nn.AdaptiveAvgPool2d(1)(h[None, None])
nn.LSTM(4, 4)(s)[0]
nn.GRU(4, 4)(s)[0]
nn.MultiheadAttention(4, 1)(s, s, s)[0]
nn.EmbeddingBag(5, 4)(i)
nn.PixelShuffle(2)(h[None, :, :, None])
nn.CosineSimilarity(dim=1)(s, s)
nn.SmoothL1Loss()(h, s)
nn.HuberLoss()(h, h)
nn.NLLLoss()(h, i[0])
h.softmax(dim=-1, dtype=torch.float32).mean()
h.masked_fill(b, 0).sum(-1)
h.sum((0, 1))
h.all()
h.count_nonzero()
h.nonzero()
torch.unique(h)
torch.numel(h)
torch.is_tensor(h)
torch.ones(2, 2, dtype=torch.bool)
torch.randn(2, dtype=torch.double)
torch.zeros((2, 2)).to(h)
torch.finfo(h.dtype).eps * h
h + torch.finfo(torch.float32).eps
h * np.pi
h / np.sqrt(4)
""".strip().split("\n")

STATEMENTS = r"""
x = h.clone(); x += s; return x
x = h.clone(); x *= 2; return x
x = s.clone(); x += h; return x
x = h.clone(); x **= 2; return x
x = h.clone(); x /= 2; return x
x = h.clone(); x.exp_(); return x
x = h.clone(); x.add_(s); return x
x = h.clone(); y = x.pow_(2); return y
x = h.clone(); x.clamp_(min=1e-6); return x
x = h.clone(); x.mul_(s).add_(1); return x
x = h.clone(); x[0] = 1.0; return x
x = h.clone(); x[:, 0] = h[:, 1]; return x
x = h.clone(); x.masked_fill_(b, -1e4); return x
x = h.clone(); x.fill_(1); return x
x = h.clone(); x.zero_(); return x
x = h.clone(); x.sqrt_(); return x
x = h.clone(); x.copy_(s); return x
x = s.clone(); x.copy_(h); return x
x = torch.zeros(4, 4); x[:, 0] = s[:, 0]; return x
x = h.clone(); return x.log_()
x = s.clone(); return x.addmm_(s, s)
x = h.clone(); return torch.exp_(x)
x = h.clone(); return F.relu_(x)
x = h.clone(); return F.relu(x, inplace=True)
x = i.clone(); x += 1; return x
x = h.clone(); x -= x.mean(); return x
x = 1; x = x * h; return x
x = 0; x += h; return x
x = 0.0; x = x + h.sum(); return x
y = []; y.append(h); y.append(h); return torch.cat(y)
y = [h, h]; return torch.stack(y)
y = [k for k in (h, h)]; return torch.stack(y)
y = (h, s); u, v = y; return v
u, v = h.chunk(2); return v
v, j = h.max(-1); return v
v, j = h.max(-1); return j
v, j = torch.topk(h, 2); return j
u, v = h.shape; return u
y = {"k": h}; return y["k"]
x = h if h.shape[0] > 2 else s; return x
x = h; x = x.float() if x.dtype == torch.float16 else x; return x
return (lambda t: t.exp())(h)
return [t.float() for t in (h, s)][0]
o = torch.empty(4, 4, dtype=h.dtype); torch.add(h, h, out=o); return o
with torch.no_grad(): x = h.exp(); return x
x = h; y = x[0]; y += 1; return y
x = h * 1; x = x.float(); return x.sum()
x = h; del x; return h
mu, sd = h.mean(0), h.std(0); return (h - mu) / sd
x: Tensor = h; return x.sum()
if (n := h.sum()) is not None: return n
""".strip().split("\n")

INEXACT = {
    # More than one type is said to be possible, among them the right one.
    "torch.linalg.svd(s)[1]", "torch.renorm(h, 2, 0, 1.0)", "torch.atleast_2d(h)", "torch.std_mean(h)[0]",
    "torch.var_mean(h)[1]", "torch.aminmax(h)[0]", "nn.LSTM(4, 4)(s)[0]", "nn.GRU(4, 4)(s)[0]", "torch.unique(h)",
    "nn.MultiheadAttention(4, 1)(s, s, s)[0]", 'F.pad(h, (1, 1), mode="reflect")',
    'F.pad(h[None], (1, 1), "replicate")',
    "torch.nn.utils.rnn.pad_sequence([h, h])",
    "x = h if h.shape[0] > 2 else s; return x", "sum([h, s])",
    "x = h; x = x.float() if x.dtype == torch.float16 else x; return x",
}  # fmt: skip
BODIES = [f"return {item}" for item in EXPRESSIONS] + STATEMENTS


@pytest.mark.heavy
@pytest.mark.parametrize("mode", [CUDA, CPU, Mode("O1", "fp16", "cpu"), HALF], ids=str)
@pytest.mark.parametrize("part", range(8))
def test_the_type_of_a_spelling_is_torchs(mode: Mode, part: int):
    """The very type, or for a few one of those that the linter thinks possible."""
    wrong = []
    checked = 0
    for body in BODIES[part::8]:
        if not mode.autocast and "nn." in body:
            continue  # Layers would have to be converted.
        text = PRELUDE.format(half="half" if mode.fp16 else "bfloat16", body=body)
        try:
            real = run_for_real(text, mode, lambda: torch.rand(4, 4) * 0.5 + 0.25)
        except (RuntimeError, TypeError, NotImplementedError, AssertionError, ValueError, AttributeError):
            continue  # What the mode or the made up device refuses.
        checked += 1
        found = abstractly(text, mode).dtypes
        bit = dtype_bit(real)
        loose = body.removeprefix("return ") in INEXACT
        if not found & bit or (found != bit and not loose):
            wrong.append(f"{body}: {names_of(bit)}, not {names_of(found)}")
    assert not wrong
    assert checked > 50
