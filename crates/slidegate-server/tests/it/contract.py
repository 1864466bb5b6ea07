"""What cannot be told from a status alone: a batch is answered with 200 though one of its requests is not valid."""

import schemathesis
from schemathesis.specs.openapi.checks import negative_data_rejection


@schemathesis.check
def bad_requests_are_refused(ctx, response, case):
    if isinstance(case.body, list) and response.status_code == 200:
        answers = response.json()
        assert len(answers) == len(case.body)
        if case.meta.generation.mode.is_negative:
            assert any("allowed" not in answer for answer in answers), "a bad request was decided"
        return None
    return negative_data_rejection(ctx, response, case)
