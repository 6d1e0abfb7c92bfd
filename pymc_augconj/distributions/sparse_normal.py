"""Normal vectors with a sparse precision matrix; Vecchia's approximation of a Gaussian process.

The distributions with a sparse precision construct the random variable of this module: they give
the positions of Q's entries, and the entries as a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.distributions.distribution import Continuous
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable
from scipy.spatial import cKDTree

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import DataError, NotPositiveDefiniteError
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.latents.precision import PrecisionPrior
from pymc_augconj.linalg.vecchia import Neighbours
from pymc_augconj.typing import Array, Generator, Index


def precision_prior(block: LatentBlock, entries: Array) -> PrecisionPrior:
    """Return the prior with a precision of these entries, if it is positive definite."""
    prior = block_prior(block, np.asarray(entries, dtype=float))
    assert isinstance(prior, PrecisionPrior)
    return prior


class _OfPrecision(Op):
    """An operation of NumPy on the entries of Q, or on what makes these, and perhaps a vector.

    Its value is NaN where Q is not positive definite: a number, or of the shape of the last input.
    ``type_of`` returns the type of its value, given its inputs, and ``pull`` the derivatives of
    ⟨slope, value⟩ by these, given the inputs, the value and the slope, all as graphs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        type_of: Callable[..., Any],
        pull: Callable[..., list[Variable]] | None = None,
    ) -> None:
        self._function, self._type_of, self._pull = function, type_of, pull

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, list(inputs), [self._type_of(*inputs)()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        with np.errstate(all="ignore"):
            try:
                value = self._function(*inputs)
            except NotPositiveDefiniteError:
                # Outside the support of the hyperparameters.
                value = np.full(np.shape(inputs[-1]) if node.outputs[0].ndim else (), np.nan)
        outputs[0][0] = np.asarray(value)

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], slopes: Sequence[Variable]
    ) -> list[Variable]:
        if self._pull is None:
            return super().pullback(inputs, outputs, slopes)
        return self._pull(*inputs, outputs[0], slopes[0])


def log_determinant(block: LatentBlock, entries: Variable) -> Variable:
    """Return the graph of log|Q|."""
    slopes = _OfPrecision(
        lambda entries: precision_prior(block, entries).log_det_slopes(),
        lambda entries: entries.type,
    )
    return _OfPrecision(
        lambda entries: -2.0 * precision_prior(block, entries).log_det_scale(),
        lambda entries: pt.dscalar,
        lambda entries, _, slope: [slope * slopes(entries)],
    )(entries)


def solve_precision(block: LatentBlock, entries: Variable, b: Variable) -> Variable:
    """Return the graph of Q⁻¹ b."""

    def pull(entries: Variable, b: Variable, found: Variable, slope: Variable) -> list[Variable]:
        assert block.entries is not None
        rows, cols = block.entries
        back = solve(entries, slope)
        by_entries = -back[rows] * found[cols]
        rest = pt.zeros(entries.shape[0] - rows.size)
        if block.is_intrinsic:
            rest = [-back.sum() * found.sum()]
        return [pt.concatenate([by_entries, rest]), back]

    solve = _OfPrecision(
        lambda entries, b: precision_prior(block, entries).apply_cov(np.asarray(b, dtype=float)),
        lambda entries, b: pt.TensorType("float64", (block.size,)),
        pull,
    )
    return solve(entries, b)


class _Structure(LatentBlock):
    """A block that is equal to itself alone, as properties of an operation are hashed."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __repr__ = object.__repr__


def precision_block(
    size: int, entries: Index, kind: str = "precision", order: Index | None = None
) -> LatentBlock:
    """Return the structure of Q: a block without a name or values."""
    nowhere: Any = None
    return _Structure(
        name="", value_name="", form="", shape=(size,), size=size, copies=1, whitened=False,
        kind=kind, scale=nowhere, entries=entries, order=order,
    )  # fmt: skip


class SparseNormalRV(RandomVariable):
    """The random variable of :class:`SparseNormal`; its inputs are the mean and Q's entries."""

    name = "sparse_normal"
    signature = "(n),(e)->(n)"
    dtype = "floatX"
    __props__ = (*RandomVariable.__props__, "block", "label", "log_factor")

    def __init__(
        self, block: LatentBlock, label: str, log_factor: float = 0.0, **kwargs: Any
    ) -> None:
        #: What the log density has beside the normal one.
        self.log_factor = log_factor
        self.block, self.label = block, label
        super().__init__(**kwargs)
        self._print_name = (label, f"\\operatorname{{{label}}}")

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> Any:
        return (self.block.size,)

    def rng_fn(self, rng: Generator, *args: Any) -> Array:
        """Draw mean + S v."""
        mu, entries, size = args
        if entries.size > entries.shape[-1]:
            raise NotImplementedError(f"{self.label}: expected one precision matrix, found several")
        shape = np.shape(mu) if size is None else (*size, self.block.size)
        prior, v = precision_prior(self.block, entries.ravel()), rng.standard_normal(shape)
        return mu + prior.scale(v.reshape(-1, self.block.size)).reshape(shape)


class SparseNormal(Continuous):
    """A normal vector with the precision matrix of a :func:`precision_block`."""

    rv_type = SparseNormalRV

    @classmethod
    def dist(
        cls, block: LatentBlock, entries: Variable, mu: Any, label: str, **kwargs: Any
    ) -> TensorVariable:
        """Return the variable, given the places of Q's entries and their values."""
        mu = pt.broadcast_to(pt.as_tensor(mu).astype("float64"), (block.size,))
        return super().dist([mu, entries], block=block, label=label, **kwargs)

    @classmethod
    def rv_op(
        cls,
        mu: Any,
        entries: Any,
        *,
        block: LatentBlock,
        label: str,
        log_factor: float = 0.0,
        size: Any = None,
        rng: Any = None,
    ) -> TensorVariable:
        op = SparseNormalRV(block=block, label=label, log_factor=log_factor)
        rng = pt.random.shared_rng(seed=None) if rng is None else rng
        return op(mu, entries, size=size, rng=rng, return_next_rng=True)[1]

    def support_point(rv: TensorVariable, size: Any, mu: Any, entries: Any) -> TensorVariable:
        return mu if rv_size_is_none(size) else pt.broadcast_to(mu, (*size, mu.shape[-1]))


@_logprob.register(SparseNormalRV)
def _log_density(
    op: SparseNormalRV,
    values: Sequence[TensorVariable],
    rng: Variable,
    size: Variable,
    mu: TensorVariable,
    entries: TensorVariable,
    **kwargs: Any,
) -> TensorVariable:
    block, x = op.block, values[0] - mu
    # With a size the entries have dimensions of length one.
    entries = entries.reshape((entries.shape[-1],))
    assert block.entries is not None
    # Constants, as PyTensor looks at each entry of an array.
    rows, cols = map(pt.constant, block.entries)
    square = (entries[: len(block.entries[0])] * x[..., rows] * x[..., cols]).sum(axis=-1)
    if block.is_intrinsic:
        square += entries[-1] * x.sum(axis=-1) ** 2
    normal = log_determinant(block, entries) - block.size * np.log(2.0 * np.pi) - square
    return pt.switch(pt.isnan(normal), -np.inf, 0.5 * normal + op.log_factor)


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
        return SparseNormal.dist(block, _precision(near, k), mu, cls.__name__, **kwargs)

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


def _precision(near: Neighbours, k: Variable) -> Variable:
    """Return the graph of :meth:`.Neighbours.precision`, given covariances."""

    def slopes(k: Array, slope: Array) -> Array:
        return near.pull_precision(np.ascontiguousarray(k), np.ascontiguousarray(slope))

    by_k, shape = _OfPrecision(slopes, lambda k, _: k.type), near.entries.shape[1] + near.size
    return _OfPrecision(
        lambda k: near.precision(np.ascontiguousarray(k)),
        lambda k: pt.TensorType("float64", (shape,)),
        lambda k, _, slope: [by_k(k, slope)],
    )(k.astype("float64"))
