# Crossed effects by the peers in R: Rscript crossed.R peer kind folder, see crossed_peers.py
arguments <- commandArgs(trailingOnly = TRUE)
peer <- arguments[1]
kind <- arguments[2]
folder <- arguments[3]
suppressMessages(library(peer, character.only = TRUE))
sizes <- scan(file.path(folder, "sizes"), quiet = TRUE)
read <- function(name) readBin(file.path(folder, name), "double", sizes[1])
frame <- data.frame(y = read("y"))
terms <- "1"
for (k in seq_len(sizes[3])) {
  frame[[paste0("x", k)]] <- read(paste0("x", k - 1))
  terms <- c(terms, paste0("x", k))
}
for (k in seq_len(sizes[2])) {
  frame[[paste0("g", k)]] <- factor(read(paste0("g", k - 1)))
  terms <- c(terms, paste0("(1 | g", k, ")"))
}
formula <- as.formula(paste("y ~", paste(terms, collapse = " + ")))
family <- list(Normal = gaussian(), Bernoulli = binomial(), Poisson = poisson())[[kind]]
start <- proc.time()
if (peer == "glmmTMB") {
  fit <- glmmTMB(formula, frame, family = family)
  deviations <- sqrt(unlist(VarCorr(fit)$cond))
} else {
  fit <- if (kind == "Normal") lmer(formula, frame) else glmer(formula, frame, family = family)
  deviations <- sqrt(unlist(VarCorr(fit)))
}
seconds <- sum((proc.time() - start)[c(1, 2, 4, 5)])
deviations <- deviations[paste0("g", seq_len(sizes[2]))]
status <- readLines("/proc/self/status")
peak <- as.numeric(gsub("[^0-9]", "", grep("VmHWM", status, value = TRUE))) * 1.024e-6
writeLines(as.character(c(seconds, peak, deviations)), file.path(folder, "result"))
