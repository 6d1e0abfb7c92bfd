"""Likelihoods in all spellings: a line is a distribution's code and the kind of its data.

``{eta}`` is the predictor. ``{s}`` and ``{per_s}`` are a positive value of the data's unit and of
its inverse, ``{k}`` one of order one, ``{p}`` a probability, ``{u}`` the unit, ``{n}`` numbers of
trials, ``{x}`` positive data, ``{low}`` and ``{high}`` bounds of the data. Each is drawn anew
wherever it stands. ``{eta2}`` and ``{eta3}`` are further predictors, and ``{link}`` and ``{link2}``
predictors of a link.
"""

from __future__ import annotations

__all__ = ["LIKELIHOODS", "SIGMOIDS"]

# Every spelling of a probability; {e} is a small number.
SIGMOIDS = (
    "pm.math.invlogit({eta})",
    "pm.math.sigmoid({eta})",
    "1.0 / (1.0 + pt.exp(-{eta}))",
    "pt.exp({eta}) / (1.0 + pt.exp({eta}))",
    "1.0 - pm.math.sigmoid({eta})",
    "pm.math.sigmoid(-{eta})",
    "pm.math.sigmoid({k} * {eta})",
    "pt.exp(-pt.softplus(-{eta}))",
    "0.5 * (1.0 + pt.tanh(0.5 * {eta}))",
    "pm.math.invprobit({eta})",
    "0.5 * (1.0 + pt.erf({eta} / np.sqrt(2.0)))",
    "0.5 * pt.erfc(-{eta} / np.sqrt(2.0))",
    "1.0 - pt.exp(-pt.exp({eta}))",
    "0.5 + pt.arctan({eta}) / np.pi",
    "pt.clip(pm.math.sigmoid({eta}), {e}, 1.0 - {e})",
    "pt.maximum({e}, pt.minimum(pm.math.sigmoid({eta}), 1.0 - {e}))",
    "{e} + (1.0 - 2.0 * {e}) * pm.math.sigmoid({eta})",
    "pt.switch(pm.math.sigmoid({eta}) < {e}, {e}, pm.math.sigmoid({eta}))",
    "{p} * pm.math.sigmoid({eta})",
    "0.02 + 0.9 * pm.math.invprobit({eta})",
)

_REAL = (
    "Normal(mu={eta}, sigma={s})",
    "Normal({eta}, {s})",
    "Normal(mu={eta}, tau={per_s} ** 2)",
    "Normal(mu={eta}, sigma={S})",
    "StudentT(nu=4, mu={eta}, sigma={s})",
    "StudentT(nu={k} + 1.0, mu={eta}, sigma={s})",
    "StudentT(nu=5.0, mu={eta}, lam={per_s} ** 2)",
    "StudentT(nu=3.0, mu={eta}, sigma={S})",
    "Cauchy({eta}, {s})",
    "Cauchy(alpha={eta}, beta={S})",
    "Laplace({eta}, {s})",
    "Laplace(mu={eta}, b={S})",
    "AsymmetricLaplace(b={per_s}, kappa={k}, mu={eta})",
    "AsymmetricLaplace(b={per_s}, q={p}, mu={eta})",
    "Logistic({eta}, {s})",
    "Logistic(mu={eta}, s={S})",
    "Gumbel(mu={eta}, beta={s})",
    "Moyal(mu={eta}, sigma={s})",
    "SkewNormal(mu={eta}, sigma={s}, alpha=2.0)",
    "ExGaussian(mu={eta}, sigma={s}, nu={s})",
    "Normal(mu=0.0, sigma={u} * pt.exp({link}))",
    "StudentT(nu=4.0, mu={u}, sigma={u} * pt.exp(0.5 * {link}))",
    "Censored(pm.Normal.dist({eta}, {s}), lower={low}, upper=None)",
    "Censored(pm.StudentT.dist(nu=4.0, mu={eta}, sigma={s}), lower=None, upper={high})",
    "Censored(pm.Laplace.dist({eta}, {s}), lower={low}, upper={high})",
    "Truncated(pm.Normal.dist({eta}, {s}), lower=-50.0 * {u}, upper=50.0 * {u})",
    "NormalMixture(w=[0.7, 0.3], mu=pt.stack([{eta}, {eta}], axis=-1), sigma=[{u}, 5.0 * {u}])",
    "Mixture(w=[0.9, 0.1], comp_dists=[pm.Normal.dist({eta}, {s}), pm.Cauchy.dist({eta}, {u})])",
    "CustomDist({eta}, {s}, logp=lambda y, m, s: -pt.abs((y - m) / s) - pt.log(2.0 * s))",
    "CustomDist({eta}, logp=lambda y, m: -0.5 * ((y - m) / {u}) ** 2 - np.log({u} * 2.5066282746))",
    "CustomDist({eta}, logp=lambda y, m: -pt.log(pt.cosh((y - m) / {u})) - np.log(np.pi * {u}))",
)

_BINARY = (
    *("Bernoulli(logit_p={eta})", "Bernoulli(logit_p={eta})", "Bernoulli(logit_p=-{eta})"),
    *("Bernoulli(logit_p={k} * {eta})", "Bernoulli(logit_p=2.0 * {eta} - 1.0)"),
    *(f"Bernoulli(p={sigmoid})" for sigmoid in SIGMOIDS),
    "Bernoulli({sigmoid})",
    "Binomial(n=1, logit_p={eta})",
    "Categorical(logit_p=pt.stack([pt.zeros_like({eta}), {eta}], axis=-1))",
)

_TRIALS = (
    "Binomial(n={n}, logit_p={eta})",
    "Binomial(n={n}, logit_p={eta})",
    "Binomial({n}, {sigmoid})",
    "Binomial(n={n}, p={sigmoid})",
    "BetaBinomial(n={n}, alpha=pt.exp({eta}), beta={k})",
    "ZeroInflatedBinomial(psi={p}, n={n}, p=pm.math.sigmoid({eta}))",
)

_COUNT = (
    "NegativeBinomial(mu=pm.math.exp({eta}), alpha={k})",
    "NegativeBinomial(mu={x} * pt.exp({eta}), alpha={k})",
    "NegativeBinomial(mu=pt.exp({eta} + np.log({x})), alpha=2.5)",
    "NegativeBinomial(n={k}, p=pm.math.invlogit({eta}))",
    "NegativeBinomial(n=3.0, p={sigmoid})",
    "Poisson({x} * pm.math.invlogit({eta}))",
    "Poisson(9.0 * {k} * pm.math.invlogit({eta}))",
    "Poisson(20.0 * {sigmoid})",
    "Poisson(pm.math.exp({eta}))",
    "Poisson(mu={x} * pt.exp({eta}))",
    "Poisson(mu=pt.exp({eta} + np.log({x})))",
    "Poisson({x} * {eta} ** 2)",
    "Poisson(pt.square({eta}))",
    "Poisson(pt.softplus({eta}))",
    "Poisson(0.1 + pt.exp({eta}))",
    "Poisson(pt.maximum(pt.exp({eta}), 1e-6))",
    "ZeroInflatedPoisson(psi={p}, mu=pt.exp({eta}))",
    "ZeroInflatedPoisson(psi=pm.math.sigmoid({eta}), mu=2.0)",
    "ZeroInflatedNegativeBinomial(psi={p}, mu=pt.exp({eta}), alpha={k})",
    "Censored(pm.Poisson.dist(pt.exp({eta})), lower=None, upper=6)",
    "DiscreteWeibull(q=pm.math.sigmoid({eta}), beta=1.2)",
)

_FROM_ONE = (
    "Geometric(p=pm.math.sigmoid({eta}))",
    "Truncated(pm.Poisson.dist(pt.exp({eta})), lower=1)",
)

_POSITIVE = (
    "Gamma(alpha={k}, beta={k} / ({u} * pt.exp({link})))",
    "Gamma(mu={u} * pt.exp({link}), sigma={s})",
    "Gamma(alpha=2.0, beta={per_s} * pt.exp(-{link}))",
    "Exponential({per_s} * pt.exp({link}))",
    "Exponential(scale={u} * pt.exp({link}))",
    "Weibull(alpha={k}, beta={u} * pt.exp({link}))",
    "Weibull(1.5, {u} * pt.exp(-{link}))",
    "LogNormal(mu={link} + np.log({u}), sigma={k})",
    "InverseGamma(alpha={k} + 1.0, beta={u} * pt.exp({link}))",
    "Wald(mu={u} * pt.exp({link}), lam={s})",
    "HalfNormal(sigma={u} * pt.exp({link}))",
    "HalfCauchy({u} * pt.exp({link}))",
    "Rice(nu={u} * pt.exp({link}), sigma={s})",
    "Pareto(alpha=pt.exp({link}), m=1e-4 * {u})",
    "Censored(pm.Weibull.dist(1.5, {u} * pt.exp({link})), lower=None, upper={high})",
    "Censored(pm.Exponential.dist({per_s} * pt.exp({link})), lower=None, upper={high})",
    "Censored(pm.Gamma.dist({k}, {per_s} * pt.exp({link})), lower={low}, upper=None)",
)

_UNIT = (
    "Beta(mu=pm.math.sigmoid({eta}), nu={k} * 5.0)",
    "Beta(alpha=pt.exp({eta}), beta={k})",
    "LogitNormal({eta}, {k})",
    "Kumaraswamy(pt.exp({eta}), 2.0)",
)

_ORDINAL = (
    "OrderedLogistic(eta={eta}, cutpoints=np.array([-1.0, 0.3, 1.5]))",
    "OrderedProbit(eta={eta}, cutpoints=np.array([-1.0, 0.3, 1.5]))",
    "OrderedLogistic(eta={eta}, cutpoints=pt.stack([-{k}, 0.0, {k}]))",
)

_PACKAGE = (
    "pac.MaternNoise(nu=1.5, mu={eta}, rho={s})",
    "pac.MaternNoise(nu=0.5, mu={eta}, rho={s})",
    "pac.SuperGaussian({eta}, log_phi=lambda r: 1.0 - (1.0 + r / {u} ** 2) ** 0.3)",
    "pac.SuperGaussian({eta}, log_phi=lambda r: -2.0 * pt.log1p(r / {u} ** 2))",
)

# Distributions that depend on several predictors.

_TWO_REAL = (
    "Normal({eta}, {u} * pt.exp({link2}))",
    "Normal(mu={eta}, sigma=pt.exp({link2} + np.log({u})))",
    "Normal(mu={eta}, tau={per_s} ** 2 * pm.math.sigmoid({link2}))",
    "Normal({eta}, 1.0 / pt.sqrt({per_s} ** 2 * pm.math.sigmoid({link2})))",
    "Normal({eta}, tau={per_s} ** 2 * pt.exp(-2.0 * {link2}))",
    "Normal({eta}, {u} * pt.softplus({link2}))",
    "StudentT(nu=4.0, mu={eta}, sigma={u} * pt.exp({link2}))",
    "StudentT(nu=2.0 + pt.exp({link2}), mu={eta}, sigma={s})",
    "Laplace({eta}, {u} * pt.exp({link2}))",
    "Gumbel(mu={eta}, beta={u} * pt.exp({link2}))",
    "SkewNormal(mu={eta}, sigma={s}, alpha={link2})",
    "Censored(pm.Normal.dist({eta}, {u} * pt.exp({link2})), lower={low}, upper=None)",
    "Truncated(pm.Normal.dist({eta}, {u} * pt.exp({link2})), lower=-50.0 * {u}, upper=50.0 * {u})",
)

_TWO_COUNT = (
    "NegativeBinomial(mu=pm.math.exp({eta}), alpha=pt.exp({link2}))",
    "NegativeBinomial(mu={x} * pt.exp({eta}), alpha=1.0 / pt.exp({link2}))",
    "ZeroInflatedPoisson(psi=pm.math.sigmoid({link2}), mu=pt.exp({eta}))",
    "ZeroInflatedNegativeBinomial(psi=pm.math.sigmoid({link2}), mu=pt.exp({eta}), alpha={k})",
    "HurdlePoisson(psi=pm.math.sigmoid({link2}), mu=pt.exp({eta}))",
)

_TWO_TRIALS = (
    "BetaBinomial(n={n}, alpha=pt.exp({eta}), beta=pt.exp({link2}))",
    "ZeroInflatedBinomial(psi=pm.math.sigmoid({link2}), n={n}, p=pm.math.sigmoid({eta}))",
)

_TWO_POSITIVE = (
    "Gamma(mu={u} * pt.exp({link}), sigma={u} * pt.exp({link2}))",
    "Gamma(alpha=pt.exp({link2}), beta={per_s} * pt.exp(-{link}))",
    "Weibull(alpha=pt.exp({link2}), beta={u} * pt.exp({link}))",
    "LogNormal(mu={link} + np.log({u}), sigma=pt.exp({link2}))",
    "InverseGamma(alpha=1.0 + pt.exp({link2}), beta={u} * pt.exp({link}))",
    "Wald(mu={u} * pt.exp({link}), lam={u} * pt.exp({link2}))",
    "Censored(pm.Weibull.dist(pt.exp({link2}), {u} * pt.exp({link})), lower=None, upper={high})",
)

_TWO_SHARES = (
    "Beta(mu=pm.math.sigmoid({eta}), nu=5.0 * pt.exp({link2}))",
    "Beta(alpha=pt.exp({eta}), beta=pt.exp({link2}))",
)

_CLASSES = (
    "Categorical(logit_p=pt.stack([{eta}, {eta2}, {eta3}], axis=-1))",
    "Categorical(logit_p=pt.stack([{eta}, pt.zeros_like({eta}), {eta2}], axis=-1))",
    "Categorical(p=pm.math.softmax(pt.stack([{eta}, {eta2}, 0.5 * {eta3}], axis=-1), axis=-1))",
    "Categorical(logit_p=pt.moveaxis(pt.stack([{eta}, {eta2}, {eta3}]), 0, -1))",
    "Categorical(logit_p=pt.stack([{eta}, {eta2}, {eta3}], axis=-1) - {k})",
)

#: Kind of data, weight, spellings.
LIKELIHOODS: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("real", 0.30, _REAL),
    ("binary", 0.20, _BINARY),
    ("trials", 0.08, _TRIALS),
    ("count", 0.17, _COUNT),
    ("from one", 0.02, _FROM_ONE),
    ("positive", 0.12, _POSITIVE),
    ("share", 0.03, _UNIT),
    ("ordinal", 0.03, _ORDINAL),
    ("signed", 0.01, ("pac.BayesianSVM({eta})",)),
    ("package", 0.04, _PACKAGE),
    ("two real", 0.08, _TWO_REAL),
    ("two count", 0.05, _TWO_COUNT),
    ("two trials", 0.02, _TWO_TRIALS),
    ("two positive", 0.05, _TWO_POSITIVE),
    ("two share", 0.02, _TWO_SHARES),
    ("classes", 0.05, _CLASSES),
)
