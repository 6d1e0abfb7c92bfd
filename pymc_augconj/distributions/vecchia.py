"""Vecchia's approximation of a Gaussian process, as a prior in the user's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.distributions.distribution import Continuous
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.variable import TensorVariable
from scipy.spatial import cKDTree

from pymc_augconj.errors import DataError
from pymc_augconj.linalg.vecchia import Neighbours
from pymc_augconj.typing import Array

from .sparse_normal import SparseNormal, precision_block

# PyMC's own for processes.
_JITTER = 1e-6


class Vecchia(Continuous):
    r"""A Gaussian process in which each value depends on a few earlier values nearby.

    With the inputs in max-min order and c(i) the m nearest inputs before i,

    .. math:: p(f) = \prod_i p(f_i \mid f_{c(i)}),

    where each factor is the conditional density of the process. The precision is sparse; a sampler
    is exact under this prior. With m = n − 1 it is the process itself. It has one value for each
    row of ``X``, and takes time and memory linear in n, except to factorise Q.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Inputs, numbers. Neighbours are by Euclidean distance: divide each column by its scale.
    cov_func : pm.gp.cov.Covariance
        Any covariance function of PyMC, with hyperparameters of the model.
    neighbours : int
        The number m of neighbours.
    mu : tensor_like
        Mean, a number or shape (n,).
    jitter : float
        Added to the variances, as PyMC's processes do.

    Raises
    ------
    DataError
        If X is not a finite matrix, or ``neighbours`` is not positive.

    References
    ----------
    Vecchia (1988), Estimation and model identification for continuous spatial processes. JRSS B 50.
    Katzfuss & Guinness (2021), A general framework for Vecchia approximations of Gaussian
    processes. Statistical Science 36.

    Examples
    --------
    >>> cov = eta**2 * pm.gp.cov.Matern32(2, ls=ls)  # doctest: +SKIP
    >>> f = pac.Vecchia("f", X=X, cov_func=cov, neighbours=20)  # doctest: +SKIP
    """

    @classmethod
    def dist(
        cls,
        X: ArrayLike,
        cov_func: Any,
        neighbours: int = 20,
        mu: Any = 0.0,
        jitter: float = _JITTER,
        **kwargs: Any,
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        inputs = _matrix(X)
        if neighbours < 1:
            raise DataError(f"Vecchia: expected neighbours of at least 1, found {neighbours}")
        near = Neighbours(inputs, int(neighbours))
        rows, cols = near.lower
        own = cov_func(pt.constant(inputs), diag=True) + jitter
        k = pt.switch(
            rows == cols,
            own[pt.constant(rows)],  # PyTensor looks at each entry of an array
            _covariances(cov_func, inputs[rows, None], inputs[cols, None])[:, 0, 0],
        )
        block = precision_block(near.size, near.entries, "pivots", near.order)
        return SparseNormal.dist(block, _Precision(near)(k), mu, cls.__name__, **kwargs)

    @staticmethod
    def conditional(
        name: str,
        Xnew: ArrayLike,
        f: TensorVariable,
        X: ArrayLike,
        cov_func: Any,
        neighbours: int = 20,
        mu: Any = 0.0,
        jitter: float = _JITTER,
        **kwargs: Any,
    ) -> TensorVariable:
        """Add the values at new inputs to the model, for ``pm.sample_posterior_predictive``.

        Each depends on its nearest values of ``f``; given ``f`` the new values are independent.

        Parameters
        ----------
        name : str
        Xnew : array_like, shape (P, d)
        f : TensorVariable
            The values at ``X``.
        X, cov_func, neighbours, mu, jitter
            The arguments of ``f``.

        Returns
        -------
        TensorVariable, shape (P,)
        """
        old, new = _matrix(X), _matrix(Xnew)
        k = min(neighbours, len(old))
        near = cKDTree(old).query(new, k=k)[1].reshape(len(new), k)
        both = np.concatenate([new[:, None], old[near]], axis=1)
        K = _covariances(cov_func, both) + jitter * np.eye(k + 1)
        weights = pt.linalg.solve(K[:, 1:, 1:], K[:, 1:, :1], b_ndim=2, assume_a="pos")[..., 0]
        mean = pt.broadcast_to(mu, (len(old),))
        centre = (weights * (f - mean)[near]).sum(axis=-1)
        var = K[:, 0, 0] - (weights * K[:, 1:, 0]).sum(axis=-1)
        return pm.Normal(name, (mu if np.ndim(mu) == 0 else 0.0) + centre, pt.sqrt(var), **kwargs)


def _matrix(X: ArrayLike) -> Array:
    found = np.asarray(X, dtype=float)
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        raise DataError(
            f"Vecchia: expected inputs of shape (n, d), finite numbers, found shape {found.shape}"
            + ("" if found.ndim != 2 else " with entries that are not finite")
        )
    return found


def _covariances(cov_func: Any, *groups: Array) -> Variable:
    """Return the graph of covariances within groups of inputs (n, m, d), or between two of them."""
    X = [pt.tensor(dtype="float64", shape=inputs.shape[1:]) for inputs in groups]
    return vectorize_graph(
        cov_func(*X), {x: pt.constant(inputs) for x, inputs in zip(X, groups, strict=True)}
    )


class _Precision(Op):
    """The precision of :meth:`.Neighbours.precision`, given covariances."""

    __props__ = ("near",)

    def __init__(self, near: Neighbours) -> None:
        self.near = near

    def make_node(self, k: Variable) -> Apply:
        shape = (self.near.entries.shape[1] + self.near.size,)
        return Apply(self, [k.astype("float64")], [pt.tensor(dtype="float64", shape=shape)])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        outputs[0][0] = self.near.precision(np.ascontiguousarray(inputs[0]))

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], slopes: Sequence[Variable]
    ) -> list[Variable]:
        return [_PrecisionPullback(self.near)(inputs[0], slopes[0])]


class _PrecisionPullback(_Precision):
    """The derivative of a weighted sum of :class:`_Precision` by the covariances."""

    def make_node(self, k: Variable, slopes: Variable) -> Apply:  # type: ignore[override]
        return Apply(self, [k, slopes], [k.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        outputs[0][0] = self.near.pull_precision(*map(np.ascontiguousarray, inputs))
