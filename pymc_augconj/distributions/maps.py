"""Priors of maps: a value for each area, similar to the values of its neighbours.

The weights of neighbours are a SciPy sparse matrix or a list of edges; no n × n array is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Continuous
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import coo_array, issparse
from scipy.sparse.csgraph import connected_components

from pymc_augconj.errors import DataError
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.typing import Array, Index

from .sparse_normal import SparseNormal, precision_block


class CAR(Continuous):
    r"""A proper conditional autoregression, with the precision τ (D − α W), D the row sums of W.

    The same distribution as ``pm.CAR``, with its normalising constant and without eigenvalues.

    Parameters
    ----------
    W : scipy.sparse array or array_like, shape (n, n) or (E, 2)
        Symmetric, positive weights of neighbours; or pairs of areas, numbered from 0, each once.
    alpha : tensor_like
        Dependence on the neighbours, a number between −1 and 1.
    tau : tensor_like
        Precision, a positive number.
    mu : tensor_like
        Mean, a number or shape (n,).

    Raises
    ------
    DataError
        If W is not as described, or an area has no neighbour.

    References
    ----------
    Besag (1974), Spatial interaction and the statistical analysis of lattice systems. JRSS B 36.
    """

    @classmethod
    def dist(
        cls, W: Any, alpha: Any, tau: Any = 1.0, mu: Any = 0.0, **kwargs: Any
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        n, entries, sums, weights = _graph(W, cls.__name__)
        if not sums[:n].all():
            raise DataError(
                f"CAR: expected every area to have a neighbour, found none of "
                f"area {int(sums[:n].argmin())}; use pac.Leroux"
            )
        alpha, tau = _numbers(alpha, tau)
        # Beyond ±1 there is no prior for any entries.
        tau = pt.switch(pt.abs(alpha) < 1.0, tau, np.nan)
        block = precision_block(n, entries)
        return SparseNormal.dist(block, tau * (sums - alpha * weights), mu, cls.__name__, **kwargs)


class Leroux(Continuous):
    r"""The prior of Leroux, Lei and Breslow: precision (ρ (D − W) + (1 − ρ) I) / σ².

    Parameters
    ----------
    W : scipy.sparse array or array_like, shape (n, n) or (E, 2)
        Symmetric, positive weights of neighbours; or pairs of areas, numbered from 0, each once.
    rho : tensor_like
        Share of the neighbours, from 0 (independent areas) to less than 1.
    sigma : tensor_like
        Scale, a positive number.
    mu : tensor_like
        Mean, a number or shape (n,).

    Raises
    ------
    DataError
        If W is not as described.

    References
    ----------
    Leroux, Lei & Breslow (2000), Estimation of disease rates in small areas. In Statistical Models
    in Epidemiology, the Environment, and Clinical Trials.
    """

    @classmethod
    def dist(
        cls, W: Any, rho: Any, sigma: Any = 1.0, mu: Any = 0.0, **kwargs: Any
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        n, entries, sums, weights = _graph(W, cls.__name__)
        rho, sigma = _numbers(rho, sigma)
        valid = (rho >= 0.0) & (rho < 1.0) & (sigma > 0.0)
        tau = pt.switch(valid, sigma**-2.0, np.nan)
        own = (entries[0] == entries[1]).astype(float)
        array = tau * (rho * (sums - weights) + (1.0 - rho) * own)
        return SparseNormal.dist(precision_block(n, entries), array, mu, cls.__name__, **kwargs)


class ICAR(Continuous):
    r"""The intrinsic autoregression, precision (D − W) / σ², with a sum near zero.

    The mean of the areas is N(0, ``zero_sum_stdev``²), so that the prior is proper and has a
    normalising constant. ``scaled`` multiplies W by a number that makes the geometric mean of the
    variances σ². The model of Riebler et al. (BYM2) is √ρ times a scaled ``ICAR`` plus √(1 − ρ)
    times a ``pm.Normal``.

    Parameters
    ----------
    W : scipy.sparse array or array_like, shape (n, n) or (E, 2)
        Symmetric, positive weights of neighbours; or pairs of areas, numbered from 0, each once.
    sigma : tensor_like
        Scale, a positive number.
    zero_sum_stdev : float
        Standard deviation of the mean of the areas, positive.
    scaled : bool
        Whether to scale W as above.

    Raises
    ------
    DataError
        If W is not as described, or the map has several parts.

    References
    ----------
    Besag, York & Mollié (1991), Bayesian image restoration. Annals of the ISM 43.
    Riebler, Sørbye, Simpson & Rue (2016), An intuitive Bayesian spatial model for disease mapping
    that accounts for scaling. Statistical Methods in Medical Research 25.
    """

    @classmethod
    def dist(
        cls,
        W: Any,
        sigma: Any = 1.0,
        zero_sum_stdev: float = 0.001,
        scaled: bool = False,
        **kwargs: Any,
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        n, entries, sums, weights = _graph(W, cls.__name__)
        present = weights != 0.0
        matrix = coo_array((weights[present], tuple(entries[:, present])), shape=(n, n))
        parts = connected_components(matrix)[0]
        if parts > 1:
            raise DataError(
                f"ICAR: expected a connected map, found {parts} parts; use pac.Leroux or pac.CAR, "
                "or an ICAR for each part"
            )
        block = precision_block(n, entries, "intrinsic")
        common = (zero_sum_stdev * n) ** -2.0
        B = sums - weights
        if scaled:
            prior = block_prior(block, np.append(B, common))
            B = B * np.exp(np.log(prior.var() - zero_sum_stdev**2).mean())
        (sigma,) = _numbers(sigma)
        tau = pt.switch(sigma > 0.0, sigma**-2.0, np.nan)
        array = pt.concatenate([tau * B, [common]])
        return SparseNormal.dist(block, array, 0.0, cls.__name__, **kwargs)


def _numbers(*values: Any) -> list[Variable]:
    """Return graphs of numbers."""
    return [pt.as_tensor(value).astype("float64").reshape(()) for value in values]


def _graph(W: Any, name: str) -> tuple[int, Index, Array, Array]:
    """Return n, the places of the entries of D − W, the diagonal's first, and those of D and W."""
    is_list = not issparse(W) and np.ndim(W) == 2 and np.shape(W)[1] == 2 != len(W)
    if not issparse(W):
        W = np.asarray(W)
        if is_list:
            W = W.astype(np.intp, casting="same_kind")
            n = int(W.max(initial=-1)) + 1
            if W.min(initial=0) < 0:
                raise DataError(f"{name}: expected areas numbered from 0, found {W.min()}")
            both = np.concatenate([W, W[:, ::-1]]).T
            W = coo_array((np.ones(both.shape[1]), tuple(both)), shape=(n, n))
    W = coo_array(W).astype(float)
    W.sum_duplicates()
    W.eliminate_zeros()
    rows, cols = W.coords
    n = W.shape[0]
    wrong = None
    if is_list and (W.data > 1.0).any():
        wrong = "a pair more than once"
    elif W.shape != (n, n) or n < 2:
        wrong = f"shape {W.shape}"
    elif not (np.isfinite(W.data).all() and (W.data > 0.0).all()):
        wrong = "weights that are negative or not finite"
    elif (rows == cols).any():
        wrong = f"area {int(rows[rows == cols][0])} beside itself"
    elif abs(W - W.T).sum() > 0.0:
        wrong = "weights that are not symmetric"
    if wrong is not None:
        raise DataError(
            f"{name}: expected W to have symmetric weights of neighbours, positive and finite, "
            f"shape (n, n), or pairs of areas, shape (E, 2); found {wrong}"
        )
    entries = np.concatenate([np.tile(np.arange(n), (2, 1)), [rows, cols]], axis=1).astype(np.intp)
    sums = np.bincount(rows, W.data, n)
    return n, entries, np.append(sums, np.zeros(rows.size)), np.append(np.zeros(n), W.data)
