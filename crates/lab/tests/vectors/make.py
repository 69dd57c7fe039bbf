#!/usr/bin/env python3
"""Makes statistics.json: what SciPy says about fixed samples.

The lab's statistics are written by hand in Rust; this file is the independent
opinion they are tested against. Run with SciPy >= 1.15 and NumPy installed:

    python3 make.py > statistics.json

Intervals are not taken from the formula the Rust code uses: they are found by
asking SciPy's exact test, at every candidate shift, whether it rejects.
"""

import json
import sys

import numpy as np
import scipy
from scipy import stats

RANDOM = np.random.Generator(np.random.PCG64(20261121))
LEVEL = 0.05


def walsh(x):
    i, j = np.triu_indices(len(x))
    return np.sort((x[i] + x[j]) / 2)


def accepted_hull(candidates, accepts):
    """First and last shift between neighbouring candidates that is accepted."""
    middles = (candidates[1:] + candidates[:-1]) / 2
    kept = [k for k, m in enumerate(middles) if accepts(m)]
    return candidates[kept[0]], candidates[kept[-1] + 1]


def signed_rank(x):
    p = stats.wilcoxon(x, method="exact").pvalue
    averages = walsh(x)
    out = {"values": list(x), "p": p, "estimate": float(np.median(averages))}
    # Below six values even the smallest p exceeds the level: no interval.
    if stats.wilcoxon(np.arange(1, len(x) + 1), method="exact").pvalue <= LEVEL:
        low, high = accepted_hull(
            averages, lambda m: stats.wilcoxon(x - m, method="exact").pvalue > LEVEL
        )
        out["interval"] = [float(low), float(high)]
    else:
        out["interval"] = None
    flip = stats.permutation_test(
        (x,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    out["sign_flip"] = float(flip.pvalue)
    boot = stats.bootstrap(
        (x,), np.median, n_resamples=20000, method="percentile", rng=RANDOM
    ).confidence_interval
    out["bootstrap_median"] = [float(boot.low), float(boot.high)]
    return out


def mann_whitney(a, b):
    test = lambda u, v: stats.mannwhitneyu(u, v, method="exact").pvalue
    differences = np.sort((b[:, None] - a[None, :]).ravel())
    low, high = accepted_hull(differences, lambda m: test(b - m, a) > LEVEL)
    return {
        "first": list(a),
        "second": list(b),
        "p": float(test(b, a)),
        "estimate": float(np.median(differences)),
        "interval": [float(low), float(high)],
    }


def trend(x):
    n = len(x)
    tau = stats.kendalltau(np.arange(n), x, variant="b").statistic
    ties = np.unique(x, return_counts=True)[1]
    pairs = n * (n - 1) / 2
    tied = np.sum(ties * (ties - 1)) / 2
    s = round(tau * np.sqrt(pairs * (pairs - tied)))
    variance = (
        n * (n - 1) * (2 * n + 5) - np.sum(ties * (ties - 1) * (2 * ties + 5))
    ) / 18
    z = 0 if s == 0 else (abs(s) - 1) / np.sqrt(variance)
    return {
        "values": list(x),
        "s": float(s),
        "p": float(2 * stats.norm.sf(z)),
        "slope": float(stats.theilslopes(x, np.arange(n)).slope),
        "spearman_with_index": float(stats.spearmanr(np.arange(n), x).statistic),
    }


def page(data):
    result = stats.page_trend_test(data, method="asymptotic")
    return {
        "blocks": data.tolist(),
        "l": float(result.statistic),
        "p": float(result.pvalue),
    }


def main():
    paired = [
        RANDOM.normal(0.02, 0.05, n) for n in (3, 5, 6, 7, 8, 10, 12, 15, 20)
    ]
    paired.append(np.log(0.97) + RANDOM.normal(0, 0.005, 10))
    paired.append(RANDOM.standard_t(2, 14) * 0.05)
    unpaired = [
        (RANDOM.normal(0, 1, n), RANDOM.normal(0.8, 1.5, m))
        for n, m in ((4, 5), (8, 8), (12, 7), (20, 20))
    ]
    series = [
        RANDOM.normal(0, 1, 10) + 0.3 * np.arange(10),
        RANDOM.normal(0, 1, 25),
        np.round(RANDOM.normal(0, 2, 30)),
    ]
    pages = [
        np.arange(5)[None, :] * 0.4 + RANDOM.normal(0, 1, (8, 5)),
        RANDOM.normal(0, 1, (10, 6)),
    ]
    large = RANDOM.normal(0.01, 0.05, 80)
    vectors = {
        "made_with": f"scipy {scipy.__version__}, numpy {np.__version__}",
        "signed_rank": [signed_rank(x) for x in paired],
        "signed_rank_normal": {
            "values": list(large),
            "p": float(stats.wilcoxon(large, method="approx", correction=True).pvalue),
        },
        "mann_whitney": [mann_whitney(a, b) for a, b in unpaired],
        "trend": [trend(x) for x in series],
        "page": [page(d) for d in pages],
        "normal_quantile": [
            [p, float(stats.norm.ppf(p))] for p in (0.001, 0.025, 0.2, 0.8, 0.975, 0.9995)
        ],
    }
    json.dump(vectors, sys.stdout, indent=1)
    print()


main()
