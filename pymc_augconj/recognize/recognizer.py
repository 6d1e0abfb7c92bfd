"""From a PyMC model to a :class:`~pymc_augconj.model.LatentGaussianModel`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.model import Model, modelcontext
from pytensor.graph.basic import Variable
from pytensor.gradient import grad

from ..errors import AugmentationError, RecognitionError
from ..model import (
    ForwardVariable,
    Hyperparameter,
    LatentBlock,
    LatentGaussianModel,
    Site,
)
from .affine import depends_on
from .checks import check_data, check_inputs, check_log_density
from .compile import PointFunction, python_mode
from .designs import read_map
from .forward import read_forward
from .latents import GaussianVariable, in_innovations
from .report import Recognition
from .rewrite import simplify
from .sites import ObservedGraph, distribution_parameters, match_observed
from .structure import (
    Structure,
    direct_parents,
    explain_no_latent,
    forward_variables,
    gaussian_candidates,
)

__all__ = ["recognize"]


def recognize(
    model: Model | None = None,
    *,
    vars: Sequence[Variable] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> Recognition:
    """Read a PyMC model as a latent Gaussian model with augmented likelihoods.

    Nothing is sampled, and the model is not changed. Print the result to see what was found and
    how it will be sampled.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context where omitted.
    vars : sequence of variables, optional
        The variables that a sampler is to update; Gaussian variables that are not among them are
        read as hyperparameters. By default every Gaussian variable is a latent.
    compile_kwargs : dict, optional
        ``{"mode": …}``: a PyTensor mode for the functions extracted from the model. By default
        they run without compilation; ``"NUMBA"`` is about twice as fast an evaluation of a
        kernel matrix, after 10 s or more of compilation the first time.

    Returns
    -------
    Recognition
        Its ``model`` is the :class:`~pymc_augconj.model.LatentGaussianModel` that the engines
        work on.

    Raises
    ------
    NotAffineError
        A predictor is not affine in the Gaussian latents.
    UnknownLikelihoodError
        No augmentation is known for an observed variable.
    DataError
        An observation is out of its likelihood's range, or an input is not finite.
    RecognitionError
        There is no Gaussian latent variable, nothing is observed, or the reading disagrees with
        PyMC's own log density.
    """
    model = modelcontext(model)
    return _Recognizer(model, vars, dict(compile_kwargs or {})).run()


class _Recognizer:
    def __init__(
        self,
        model: Model,
        vars: Sequence[Variable] | None,
        compile_kwargs: dict[str, Any],
    ):
        self.model = model
        self.chosen = None if vars is None else {var.name for var in vars}
        self.mode = compile_kwargs.get("mode")

    def run(self) -> Recognition:
        if not self.model.observed_RVs:
            raise RecognitionError(
                "the model has no observed variable: expected a likelihood with observed=…"
            )
        structure, matched = self.find_structure()
        self.structure, self.matched = structure, matched
        check_inputs(self.model, structure)
        model = LatentGaussianModel(
            blocks=tuple(self.block(latent) for latent in structure.latents),
            sites=self.sites(),
            hyperparameters=tuple(self.hyperparameter(rv) for rv in structure.hyperparameters),
            forward=read_forward(self.model, structure, self.hyper_inputs, self.mode),
            n_predictors=self.n_predictors,
            offset=self.offset_function,
            maps=self.maps,
            log_prior=PointFunction(self.log_prior_graph, self.hyper_inputs, self.mode),
            log_prior_gradient=self.gradient_of_log_prior(),
            predictor_pullback=self.predictor_pullback(),
            predictor=self.predictor,
            value_names=tuple(value.name for value in self.model.value_vars),
        )
        for site, observed in zip(model.sites, matched, strict=True):
            check_data(site, self.points[0])
            check_log_density(self, site, observed)
        return Recognition(
            model,
            kinds=tuple(m.kind for m in self.maps),
            factors=tuple(factor.name for factor in structure.factors),
            start=self.points[0],
            probes=tuple(self.points[1:]),
        )

    # -- structure ----------------------------------------------------------------------------

    def find_structure(self) -> tuple[Structure, list[ObservedGraph]]:
        """Decide which Gaussian variables are integrated out, and match the likelihoods."""
        model = self.model
        forward = forward_variables(model)
        candidates, _ = gaussian_candidates(model, forward)
        if self.chosen is not None:
            candidates = [
                c
                for c in candidates
                if self.chosen.intersection((c.name, c.rv.name, c.value.name))
            ]
        if not candidates:
            raise explain_no_latent(model)
        try:
            matched = self._match(candidates)
        except AugmentationError as error:
            candidates, matched = self._largest_consistent(candidates, error)
        matched_rvs = [observed.rv for observed in matched]
        unmatched = [rv for rv in model.observed_RVs if rv not in matched_rvs]
        for rv in unmatched:
            if not direct_parents(distribution_parameters(rv), model):
                raise RecognitionError(
                    f"observed variable {rv.name!r} depends on no free variable at all: expected "
                    "its distribution to depend on a latent variable or on a hyperparameter; "
                    "remove it, or connect it to the model"
                )
        if not matched:
            raise RecognitionError(
                f"observed variable {unmatched[0].name!r} depends on no Gaussian latent variable: "
                "expected a predictor that contains one; sample this model with pm.sample's NUTS"
            )
        latent_rvs = {latent.rv for latent in candidates}
        hyper = [rv for rv in model.free_RVs if rv not in latent_rvs and rv not in set(forward)]
        return Structure(
            latents=candidates,
            hyperparameters=hyper,
            forward=forward,
            observed=matched_rvs,
            factors=[*unmatched, *model.potentials],
        ), matched

    def _match(self, latents: Sequence[GaussianVariable]) -> list[ObservedGraph]:
        matched = []
        inputs = [latent.input for latent in latents]
        for rv in self.model.observed_RVs:
            if depends_on(in_innovations(distribution_parameters(rv), list(latents)), inputs):
                matched.append(match_observed(self.model, rv, latents))
        return matched

    def _largest_consistent(
        self, candidates: list[GaussianVariable], error: AugmentationError
    ) -> tuple[list[GaussianVariable], list[ObservedGraph]]:
        """Add the candidates one by one, largest first, as long as all predictors stay affine.

        A scalar or vector of independent Normals that does not fit becomes a hyperparameter; a
        Gaussian process that does not fit is an error.
        """
        accepted: list[GaussianVariable] = []
        matched: list[ObservedGraph] = []
        for candidate in candidates:
            try:
                matched = self._match([*accepted, candidate])
            except AugmentationError as why:
                if not candidate.diagonal:
                    raise why from None
            else:
                accepted.append(candidate)
        # A prior of one that was left out may depend on one that was accepted.
        left_out = {c.rv for c in candidates} - {c.rv for c in accepted}
        for rv in left_out:
            parents = direct_parents(list(rv.owner.inputs), self.model)
            accepted = [c for c in accepted if c.rv not in parents]
        if not accepted:
            raise error
        return accepted, self._match(accepted)

    # -- points -------------------------------------------------------------------------------

    @cached_property
    def hyper_inputs(self) -> dict[str, Variable]:
        values = self.model.rvs_to_values
        return {values[rv].name: values[rv] for rv in self.structure.hyperparameters}

    @cached_property
    def points(self) -> list[dict[str, np.ndarray]]:
        """The initial point, and two more around it, all on the unconstrained scale."""
        with pytensor.config.change_flags(mode=python_mode()):
            initial = self.model.initial_point(random_seed=0)
        rng = np.random.default_rng(0)
        points = [initial]
        for _ in range(2):
            moved = dict(initial)
            for name, var in self.hyper_inputs.items():
                if var.dtype.startswith("float"):
                    moved[name] = initial[name] + 0.3 * rng.standard_normal(initial[name].shape)
            points.append(moved)
        return points

    def in_values(self, graphs: Sequence[Variable]) -> list[Variable]:
        """Return graphs of value variables and innovations, from graphs of random variables."""
        graphs = in_innovations(list(graphs), self.structure.latents)
        return self.model.replace_rvs_by_values(graphs)

    def function(self, graphs, inputs: dict[str, Variable] | None = None) -> PointFunction:
        return PointFunction(graphs, {**self.hyper_inputs, **(inputs or {})}, self.mode)

    # -- blocks -------------------------------------------------------------------------------

    def block(self, latent: GaussianVariable) -> LatentBlock:
        (scale,) = self.model.replace_rvs_by_values([latent.scale])
        mean = None
        if latent.mean is not None:
            others = [other for other in self.structure.latents if other is not latent]
            (graph,) = in_innovations([latent.mean.ravel()], others, of_values=True)
            (graph,) = self.model.replace_rvs_by_values([graph])
            inputs = {f"latent:{other.name}": other.value_input for other in others}
            mean = self.function(graph.astype("float64"), inputs)
        return LatentBlock(
            name=latent.name,
            value_name=latent.value.name,
            form=latent.form,
            shape=latent.shape,
            size=latent.size,
            copies=latent.copies,
            whitened=latent.whitened,
            diagonal=latent.diagonal,
            scale=self.function(scale.astype("float64")),
            scale_pullback=self._pullback_of_scale(scale),
            mean=mean,
        )

    def _pullback_of_scale(self, scale: Variable):
        direction = scale.type.clone(name=None, shape=(None,) * scale.ndim)("direction")
        wrt = {
            name: var
            for name, var in self.hyper_inputs.items()
            if var.dtype.startswith("float") and depends_on(scale, var)
        }
        if not wrt:
            return lambda point, G: {}
        return _Gradient(
            (direction * scale).sum(), wrt, self.hyper_inputs, {"direction": direction}, self.mode
        )

    # -- predictors ---------------------------------------------------------------------------

    @cached_property
    def stacked(self) -> Variable:
        """η of all sites in terms of value variables and innovations, shape (N,)."""
        predictors = [eta for observed in self.matched for eta in observed.predictors]
        predictors = self.model.replace_rvs_by_values(predictors)
        return predictors[0] if len(predictors) == 1 else pt.concatenate(predictors)

    @cached_property
    def innovations(self) -> dict[str, Variable]:
        return {f"innovation:{latent.name}": latent.input for latent in self.structure.latents}

    @property
    def n_predictors(self) -> int:
        return sum(observed.size * len(observed.predictors) for observed in self.matched)

    @cached_property
    def offset_function(self) -> PointFunction:
        zeros = {
            latent.input: pt.zeros(latent.size * latent.copies)
            for latent in self.structure.latents
        }
        (graph,) = simplify(pytensor.graph.replace.graph_replace([self.stacked], zeros, strict=False))
        return self.function(graph)

    @cached_property
    def maps(self) -> tuple:
        return tuple(
            read_map(
                self.stacked,
                latent.input,
                self.hyper_inputs,
                self.points,
                latent.size * latent.copies,
                latent.name,
            )
            for latent in self.structure.latents
        )

    @cached_property
    def predictor(self):
        return _Predictor(self.function(self.stacked, self.innovations))

    def predictor_pullback(self):
        weights = pt.dvector("weights")
        wrt = {n: v for n, v in self.hyper_inputs.items() if v.dtype.startswith("float")}
        wrt = {n: v for n, v in wrt.items() if depends_on(self.stacked, v)}
        inputs = {**self.innovations, "weights": weights}
        gradient = None
        if wrt:
            gradient = _Gradient(
                (weights * self.stacked).sum(), wrt, self.hyper_inputs, inputs, self.mode
            )
        return _PredictorPullback(gradient)

    # -- sites and hyperparameters ------------------------------------------------------------

    def sites(self) -> tuple[Site, ...]:
        sites = []
        start = 0
        for observed in self.matched:
            rows = []
            for _ in observed.predictors:
                rows.append(slice(start, start + observed.size))
                start += observed.size
            names = list(observed.params)
            graphs = self.model.replace_rvs_by_values(list(observed.params.values()))
            sites.append(
                Site(
                    name=observed.rv.name,
                    likelihood=observed.likelihood,
                    size=observed.size,
                    rows=tuple(rows),
                    y=PointFunction(observed.value.astype("float64").ravel(), {}, self.mode),
                    params=_NamedValues(names, self.function(graphs)),
                )
            )
        return tuple(sites)

    def hyperparameter(self, rv: Variable) -> Hyperparameter:
        value = self.model.rvs_to_values[rv]
        in_scale = any(
            depends_on(self.model.replace_rvs_by_values([latent.scale]), value)
            for latent in self.structure.latents
        )
        in_predictor = depends_on(self.stacked, value)
        in_likelihood = any(
            observed.likelihood.has_auxiliary
            and depends_on(
                self.model.replace_rvs_by_values(list(observed.params.values())), value
            )
            for observed in self.matched
        )
        in_plain_likelihood = any(
            not observed.likelihood.has_auxiliary
            and depends_on(
                self.model.replace_rvs_by_values(list(observed.params.values())), value
            )
            for observed in self.matched
        )
        if in_likelihood:
            role = "both" if in_scale or in_plain_likelihood else "likelihood"
        elif in_scale or in_predictor or in_plain_likelihood:
            role = "prior"
        else:
            role = "none"
        return Hyperparameter(
            name=rv.name,
            value_name=value.name,
            shape=tuple(self.points[0][value.name].shape),
            continuous=value.dtype.startswith("float"),
            role=role,
        )

    @cached_property
    def log_prior_graph(self) -> Variable:
        factors = [*self.structure.hyperparameters, *self.structure.factors]
        if not factors:
            return pt.constant(0.0, dtype="float64")
        return self.model.logp(vars=factors).astype("float64")

    def gradient_of_log_prior(self):
        wrt = {n: v for n, v in self.hyper_inputs.items() if v.dtype.startswith("float")}
        wrt = {n: v for n, v in wrt.items() if depends_on(self.log_prior_graph, v)}
        if not wrt:
            return lambda point: {}
        return _Gradient(self.log_prior_graph, wrt, self.hyper_inputs, {}, self.mode)

    def log_density_graph(self, observed: ObservedGraph) -> Variable:
        """PyMC's own log density of an observed variable, elementwise and flat."""
        (rv,) = in_innovations([observed.rv], self.structure.latents)
        (graph,) = self.model.replace_rvs_by_values([pm.logp(rv, observed.value)])
        return pt.broadcast_to(graph, observed.shape).ravel()


class _Gradient:
    """Derivatives of a scalar with respect to entries of the point, compiled when first called."""

    def __init__(self, cost, wrt, inputs, extra, mode):
        self._cost, self._wrt, self._inputs, self._extra = cost, wrt, inputs, extra
        self._mode = mode
        self._function = None

    def __call__(self, point, *args) -> dict[str, np.ndarray]:
        if self._function is None:
            graphs = grad(self._cost, list(self._wrt.values()), disconnected_inputs="ignore")
            self._function = PointFunction(graphs, {**self._inputs, **self._extra}, self._mode)
        named = dict(zip(self._extra, args, strict=False))
        return dict(zip(self._wrt, self._function({**point, **named}), strict=True))


class _PredictorPullback:
    def __init__(self, gradient: _Gradient | None):
        self._gradient = gradient

    def __call__(self, point, latents, weights) -> dict[str, np.ndarray]:
        if self._gradient is None:
            return {}
        named = {f"innovation:{name}": u for name, u in latents.items()}
        return self._gradient({**point, **named, "weights": weights})


class _Predictor:
    def __init__(self, function: PointFunction):
        self._function = function

    def __call__(self, point, latents) -> np.ndarray:
        return self._function({**point, **{f"innovation:{n}": u for n, u in latents.items()}})


class _NamedValues:
    """Likelihood parameters as a dict of arrays."""

    def __init__(self, keys: Sequence[str], function: PointFunction):
        self._keys, self._function = tuple(keys), function
        self.names = function.names
        self.reads_shared = function.reads_shared

    def __call__(self, point) -> dict[str, np.ndarray]:
        return dict(zip(self._keys, self._function(point), strict=True))
