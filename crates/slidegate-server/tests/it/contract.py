"""Checks batches by their body: a batch with an invalid request has status 200 and a problem in its place."""

import schemathesis
from schemathesis.specs.openapi.checks import negative_data_rejection


@schemathesis.check
def invalid_requests_are_rejected(ctx, response, case):
    if isinstance(case.body, list) and response.status_code == 200:
        results = response.json()
        assert len(results) == len(case.body)
        if case.meta.generation.mode.is_negative:
            assert any("allowed" not in result for result in results), "an invalid request was decided"
        return None
    return negative_data_rejection(ctx, response, case)
