"""Losses over a whole batch: what relates samples to each other, and what sums them."""

from __future__ import annotations

PRODUCTS = frozenset({"torch.mm", "torch.matmul", "torch.nn.functional.linear"})
"""Products of matrices; with a transposed batch they compare all pairs of samples."""

COSINES = frozenset({"torch.nn.functional.cosine_similarity", "torch.cosine_similarity", "torch.nn.CosineSimilarity"})
"""Functions and modules that compare vectors; with axes of samples put in, all pairs of them."""

OF_OWN_PAIRS = frozenset({"torch.pdist", "torch.nn.functional.pdist"})
"""Functions that give the distances of all pairs of rows."""

SPREADS = frozenset({"std", "var"})
"""Methods that say how far samples are apart."""

OF_ALL_PAIRS = ("pytorch_metric_learning.losses.", "pytorch_metric_learning.miners.")
"""Classes of libraries that compare the samples of a batch, by the beginnings of their names."""

SUMMED_BY: dict[str, object] = {"reduction": "sum", "size_average": False}
"""Arguments by which a loss is a sum over samples."""

OF_FLOATS = frozenset(
    {
        *(f"torch.nn.{name}" for name in ("BCELoss", "BCEWithLogitsLoss", "MSELoss", "L1Loss", "SmoothL1Loss")),
        *(
            f"torch.nn.functional.{name}"
            for name in (
                "binary_cross_entropy",
                "binary_cross_entropy_with_logits",
                "mse_loss",
                "l1_loss",
                "smooth_l1_loss",
            )
        ),
    }
)
"""Losses whose target is of floats, their second argument: of whole numbers they or their gradients raise an error."""
