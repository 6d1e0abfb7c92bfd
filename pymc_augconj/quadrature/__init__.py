"""Integrals over the predictors of one observation.

=====================  ==========================================================="""
