//! The description of this API for programs, made of the same types that decode and encode.

use std::sync::LazyLock;

use axum::response::Response;
use utoipa::openapi::OpenApi as Described;
use utoipa::{Modify, OpenApi};

use super::body::{BlockFields, ChangeFields, NoteFields, RefundFields};
use super::forgetting::Forgotten;
use super::keys::{GivenBack, KeyAnswer};
use super::live::LiveAnswer;
use super::policies::PolicyAnswer;
use super::{AuditAnswer, ChangesAnswer};
use crate::changes::AuditEntry;
use crate::http::{Problem, add_token, written};

/// What is asked about everything.
macro_rules! overview {
    ($name:ident, $path:literal, $summary:literal, [$($answer:tt)+], {$($more:tt)*}) => {
        #[utoipa::path(
            get, path = $path, operation_id = stringify!($name), summary = $summary, $($more)*
            security((), ("token" = [])),
            responses(
                (status = 200, description = "As it is now", body = $($answer)+),
                (status = 400, description = "It cannot be read", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "There are tokens, and none was shown", body = Problem, content_type = "application/problem+json"),
                (status = 403, description = "There are no tokens, and a page in a browser asks", body = Problem, content_type = "application/problem+json"),
                (status = 408, description = "It took too long", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "it is only described")]
        fn $name() {}
    };
}

/// What is asked about one policy.
macro_rules! about {
    ($name:ident, $method:ident, $path:literal, $summary:literal, [$($answer:tt)+], {$($more:tt)*}) => {
        about!($name, $method, $path, $summary, [$($answer)+], {$($more)*}, {});
    };
    ($name:ident, $method:ident, $path:literal, $summary:literal, [$($answer:tt)+], {$($more:tt)*}, {$($other:tt)*}) => {
        #[utoipa::path(
            $method, path = $path, operation_id = stringify!($name), summary = $summary, $($more)*
            security((), ("token" = [])),
            responses(
                (status = 200, description = "As it is now, or what was done", body = $($answer)+),
                $($other)*
                (status = 400, description = "It cannot be read", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "There are tokens, and none was shown", body = Problem, content_type = "application/problem+json"),
                (status = 403, description = "The token may only look; or there are none, and a page in a browser asks", body = Problem, content_type = "application/problem+json"),
                (status = 404, description = "There is no such policy, or nothing is changed there", body = Problem, content_type = "application/problem+json"),
                (status = 408, description = "It took too long", body = Problem, content_type = "application/problem+json"),
                (status = 413, description = "The body is too large", body = Problem, content_type = "application/problem+json"),
                (status = 422, description = "A value is missing or out of range", body = Problem, content_type = "application/problem+json"),
                (status = 503, description = "The store is away, and nothing was changed unless it says so", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "it is only described")]
        fn $name() {}
    };
}

/// A change and its end, at the same place.
macro_rules! changeable {
    ($put:ident, $remove:ident, $path:literal, $summary:literal, {$($params:tt)*}, {$($example:tt)*}) => {
        about!($put, put, $path, $summary, [AuditEntry], {
            params($($params)*), request_body(content = ChangeFields, example = json!({$($example)*})),
        });
        about!($remove, delete, $path, "As the file has it again", [AuditEntry], { params($($params)*), });
    };
}

overview!(list_policies, "/v1/policies", "What is in force, and how it is doing", [Vec<PolicyAnswer>], {});
overview!(changes, "/v1/changes", "What differs from the file", [ChangesAnswer], {});
overview!(audit, "/v1/audit", "Who changed what, the latest first", [AuditAnswer], {});
overview!(live, "/v1/live", "Decisions, and the keys that stand out", [LiveAnswer], {
    params(("keys" = Option<usize>, Query, description = "How many keys; 10 unless given, and 100 at the most")),
});

about!(policy, get, "/v1/policies/{policy}", "What is in force, and how it is doing", [PolicyAnswer], {
    params(("policy" = String, Path, example = "api")),
});
changeable!(put_mode, remove_mode, "/v1/policies/{policy}/mode", "Enforce, shadow or off", {
    ("policy" = String, Path, example = "api")
}, {"mode": "shadow", "for": "1h"});
changeable!(put_quotas, remove_quotas, "/v1/policies/{policy}/quotas", "Other limits", {
    ("policy" = String, Path, example = "api")
}, {"quotas": ["200/1m"], "for": "1h"});
changeable!(put_tier, remove_tier, "/v1/policies/{policy}/tiers/{tier}", "Other limits for a tier", {
    ("policy" = String, Path, example = "api"),
    ("tier" = String, Path, example = "premium", description = "One that the file has")
}, {"quotas": [{"limit": 2000, "window": "1m"}]});
changeable!(put_key, remove_key, "/v1/policies/{policy}/keys/{key}", "Limits for one key, or its tier", {
    ("policy" = String, Path, example = "api"),
    ("key" = String, Path, example = "customer:42")
}, {"quotas": ["1000/1h"], "for": "3d", "note": "ticket 42"});
about!(key, get, "/v1/policies/{policy}/keys/{key}", "What a key has spent, and what holds for it alone", [KeyAnswer<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
});
about!(reset_policy, post, "/v1/policies/{policy}/reset", "Forget what all keys have spent", [Forgotten], {
    params(("policy" = String, Path, example = "api")),
    request_body(content = Option<NoteFields>, example = json!({"note": "ticket 42"})),
}, {
    (status = 202, description = "It takes long, and goes on; the audit has an entry at its end", body = Forgotten),
});
about!(reset, post, "/v1/policies/{policy}/keys/{key}/reset", "Forget what a key has spent", [GivenBack<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
    request_body(content = Option<RefundFields>, example = json!({"note": "ticket 42"})),
});
about!(refund, post, "/v1/policies/{policy}/keys/{key}/refund", "Give back, and never more than is counted", [GivenBack<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
    request_body(content = Option<RefundFields>, example = json!({"cost": 5, "note": "ticket 42"})),
});

about!(block, post, "/v1/policies/{policy}/keys/{key}/block", "Deny a key for a time", [GivenBack<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
    request_body(content = BlockFields, example = json!({"for": "10m", "note": "ticket 42"})),
});

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Slidegate admin",
        description = "What is in force in a running Slidegate, how it is doing, and changes to it.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    modifiers(&Security),
    paths(
        list_policies,
        policy,
        put_mode,
        remove_mode,
        put_quotas,
        remove_quotas,
        put_tier,
        remove_tier,
        key,
        put_key,
        remove_key,
        reset_policy,
        reset,
        refund,
        block,
        changes,
        audit,
        live
    )
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut Described) {
        add_token(document, "One of `admin.tokens` in the configuration; nothing if it has none");
    }
}

pub(super) fn document() -> Response {
    static TEXT: LazyLock<Option<String>> = LazyLock::new(|| Document::openapi().to_json().ok());
    written(TEXT.as_deref())
}
