"""The options of ``pac.fit`` about inducing points and minibatches, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.model import Model

from .engines.sparse_problem import RATE, SparseProblem, inducing_inputs
from .errors import AugmentationError
from .model import LatentGaussianModel
from .recognize.minibatch import batch_size_of
from .recognize.process import LatentProcess

__all__ = ["SparseOptions"]

#: Where the user names none.
DEFAULT_INDUCING = 100
DEFAULT_BATCH_SIZE = 256
DEFAULT_HYPER_RATE = 0.05


@dataclass(frozen=True)
class SparseOptions:
    """What ``pac.fit`` was told about inducing points; None is what was not said."""

    inducing: Any = None
    batch_size: int | None = None
    rate: float | tuple[float, float] | None = None
    hyper_rate: float | None = None
    optimize_inducing: bool = False

    def check(self, method: str, *, sparse: Sequence[str], stochastic: Sequence[str]) -> bool:
        """Return whether the fit is through inducing points; refuse what does not belong together.

        Raises
        ------
        AugmentationError
        """
        of_batches = {
            "batch_size": self.batch_size is not None,
            "rate": self.rate is not None,
            "hyper_rate": self.hyper_rate is not None,
            "optimize_inducing": self.optimize_inducing,
        }
        for option, given in of_batches.items():
            if given and method not in stochastic:
                raise AugmentationError(
                    f"{option}: expected with method {list(stochastic)} only, got it with "
                    f"method={method!r}; leave it out, or use method={stochastic[0]!r}"
                )
        if self.inducing is not None and method not in sparse:
            raise AugmentationError(
                f"inducing: expected with a method among {list(sparse)}, got it with "
                f"method={method!r}, which has no form through inducing points"
            )
        if self.batch_size is not None and not (
            isinstance(self.batch_size, int | np.integer) and self.batch_size >= 1
        ):
            raise AugmentationError(
                f"batch_size: expected a positive integer, got {self.batch_size!r}"
            )
        _check_rate(self.rate)
        if self.hyper_rate is not None and not self.hyper_rate > 0.0:
            raise AugmentationError(f"hyper_rate: expected above 0, got {self.hyper_rate!r}")
        return self.inducing is not None or method in stochastic

    def problem(
        self, model: Model, lgm: LatentGaussianModel, gp: Any, method: str, seed: Any
    ) -> SparseProblem:
        """Return what the sparse engines are given.

        Raises
        ------
        AugmentationError
            If no process is named, or inducing points do not fit its inputs.
        """
        processes = list(gp) if isinstance(gp, Sequence) else [gp]
        if gp is None or not processes:
            raise AugmentationError(
                f"gp: expected the pm.gp.Latent (or a list of several) that method={method!r} is "
                "to approximate through inducing points, got none; pass gp=gp"
            )
        rng = np.random.default_rng(seed)
        laws = [
            LatentProcess(model, one, lgm, gradient_of_inducing=self.optimize_inducing)
            for one in processes
        ]
        names = [law.name for law in laws]
        if len(set(names)) < len(names):
            raise AugmentationError(f"gp: expected different processes, got {names}")
        return SparseProblem(
            laws,
            [_inducing(rng, law, self._of(law.name, len(laws))) for law in laws],
            rng,
            batch_size=(self.batch_size or batch_size_of(model) or DEFAULT_BATCH_SIZE)
            if method == "svi"
            else None,
            rate=RATE if self.rate is None else self.rate,
            hyper_rate=DEFAULT_HYPER_RATE if self.hyper_rate is None else self.hyper_rate,
            optimize_inducing=self.optimize_inducing,
        )

    def _of(self, name: str, n_processes: int) -> Any:
        if isinstance(self.inducing, Mapping):
            if name not in self.inducing:
                raise AugmentationError(
                    f"inducing: expected an entry for the process {name!r}, got "
                    f"{list(self.inducing)}"
                )
            return self.inducing[name]
        if n_processes > 1 and np.ndim(self.inducing) == 2:
            raise AugmentationError(
                "inducing: expected inputs for each process by its name, {name: Z}, or a number, "
                "got one array for several processes"
            )
        return DEFAULT_INDUCING if self.inducing is None else self.inducing


def _check_rate(rate: Any) -> None:
    if rate is None:
        return
    if isinstance(rate, tuple):
        good = len(rate) == 2 and rate[0] > 0.0 and 0.5 < rate[1] <= 1.0
    else:
        good = isinstance(rate, float | int) and 0.0 < rate <= 1.0
    if not good:
        raise AugmentationError(
            "rate: expected a number in (0, 1], or (delay, forgetting) with delay > 0 and "
            f"forgetting in (0.5, 1], got {rate!r}"
        )


def _inducing(rng: np.random.Generator, law: LatentProcess, given: Any) -> np.ndarray:
    width = law.inputs.shape[1]
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if given < 1:
            raise AugmentationError(f"inducing: expected a positive number, got {given}")
        return inducing_inputs(rng, law.inputs, int(given))
    Z = np.array(given, dtype=float)
    if Z.ndim != 2 or Z.shape[1] != width or len(Z) == 0:
        raise AugmentationError(
            f"inducing: expected a number, or inputs of shape (M, {width}) as those of "
            f"{law.name!r}, got {Z.shape}"
        )
    if not np.isfinite(Z).all():
        raise AugmentationError("inducing: expected finite inputs, found a NaN or an infinity")
    return Z
