# Solutions of the peers in R: Rscript solve.R peer problem data.json result.json
arguments <- commandArgs(trailingOnly = TRUE)
peer <- arguments[1]
problem <- arguments[2]
data <- jsonlite::fromJSON(arguments[3])
suppressMessages(library(peer, character.only = TRUE))
frame <- as.data.frame(data)
for (name in c("g", "h")) if (!is.null(data[[name]])) frame[[name]] <- factor(data[[name]])

formulas <- list(
  linear_mixed = y ~ x + (1 | g) + (0 + x | g),
  logit_crossed = y ~ 1 + (1 | g) + (1 | h),
  negbin_groups = y ~ x + (1 | g)
)
smooths <- list(
  linear_mixed = y ~ x + s(g, bs = "re") + s(g, x, bs = "re"),
  logit_crossed = y ~ 1 + s(g, bs = "re") + s(h, bs = "re"),
  negbin_groups = y ~ x + s(g, bs = "re"),
  additive_poisson = y ~ s(x1, k = 20) + s(x2, k = 20)
)

# Means and deviations of fixed effects and of the first ten of each effect of groups.
effects_of <- function(fixed, covariance, effects) {
  parts <- lapply(effects, function(e) list(e$mean[1:10], e$sd[1:10]))
  list(
    mean = c(fixed, unlist(lapply(parts, `[[`, 1))),
    sd = c(sqrt(diag(covariance)), unlist(lapply(parts, `[[`, 2)))
  )
}

of_ranef <- function(modes) {
  unlist(lapply(modes, function(m) {
    lapply(seq_len(ncol(m)), function(k) {
      spread <- attr(m, "condVar") %||% attr(m, "postVar")
      v <- if (is.list(spread)) spread[[k]] else spread
      variance <- if (length(dim(v)) == 3) v[min(k, dim(v)[1]), min(k, dim(v)[1]), ] else c(v)
      list(mean = m[[k]], sd = sqrt(variance))
    })
  }), recursive = FALSE)
}
`%||%` <- function(a, b) if (is.null(a)) b else a

solve_lme4 <- function() {
  fit <- switch(problem,
    linear_mixed = lmer(formulas[[problem]], frame),
    logit_crossed = glmer(formulas[[problem]], frame, family = binomial()),
    negbin_groups = glmer.nb(formulas[[problem]], frame)
  )
  effects_of(fixef(fit), as.matrix(vcov(fit)), of_ranef(ranef(fit, condVar = TRUE)))
}

solve_glmmTMB <- function() {
  family <- list(linear_mixed = gaussian(), logit_crossed = binomial(), negbin_groups = nbinom2())
  fit <- glmmTMB(formulas[[problem]], frame, family = family[[problem]])
  effects_of(fixef(fit)$cond, vcov(fit)$cond, of_ranef(ranef(fit, condVar = TRUE)$cond))
}

solve_mgcv <- function() {
  family <- list(
    linear_mixed = gaussian(), logit_crossed = binomial(), negbin_groups = nb(),
    additive_poisson = poisson()
  )
  fit <- gam(smooths[[problem]], data = frame, family = family[[problem]], method = "REML")
  if (problem == "additive_poisson") {
    at <- floor(seq(0, nrow(frame) - 1, length.out = 20) + 1e-9) + 1
    found <- predict(fit, frame[at, ], se.fit = TRUE)
    return(list(mean = c(found$fit), sd = c(found$se.fit)))
  }
  spread <- sqrt(diag(vcov(fit, unconditional = TRUE)))
  fixed <- seq_len(min(sapply(fit$smooth, function(s) s$first.para)) - 1)
  at <- unlist(lapply(fit$smooth, function(s) s$first.para + 0:9))
  list(mean = unname(coef(fit)[c(fixed, at)]), sd = unname(spread[c(fixed, at)]))
}

start <- proc.time()
answer <- get(paste0("solve_", peer))()
answer$seconds <- sum((proc.time() - start)[c(1, 2, 4, 5)])
answer$version <- as.character(packageVersion(peer))
answer$mean <- unname(answer$mean)
answer$sd <- unname(answer$sd)
writeLines(jsonlite::toJSON(answer, auto_unbox = TRUE, digits = NA), arguments[4])
