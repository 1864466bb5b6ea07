//! OpenAPI description of the admin API, generated from the types that decode requests and encode responses.

use std::sync::LazyLock;

use axum::response::Response;
use slidegate_engine::changes::AuditEntry;
use utoipa::openapi::OpenApi as OpenApiDocument;
use utoipa::{Modify, OpenApi};

use super::body::{BlockFields, ChangeFields, NoteFields, RefundFields};
use super::keys::{KeyOperationResponse, KeyResponse};
use super::live::LiveResponse;
use super::policies::PolicyResponse;
use super::reset::PolicyReset;
use super::{AuditResponse, ChangesResponse};
use crate::protocols::http::Problem;
use crate::protocols::openapi::{add_token_scheme, document_response};

/// Describes an endpoint of the whole service.
macro_rules! service_endpoint {
    ($name:ident, $path:literal, $summary:literal, [$($body:tt)+], {$($options:tt)*}) => {
        #[utoipa::path(
            get, path = $path, operation_id = stringify!($name), summary = $summary, $($options)*
            security((), ("token" = [])),
            responses(
                (status = 200, description = "Current state", body = $($body)+),
                (status = 400, description = "Malformed request", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "Missing or unknown token", body = Problem, content_type = "application/problem+json"),
                (status = 403, description = "No tokens are configured and the request comes from a browser", body = Problem, content_type = "application/problem+json"),
                (status = 408, description = "The request timed out", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "only its description is used")]
        fn $name() {}
    };
}

/// Describes an endpoint of one policy.
macro_rules! policy_endpoint {
    ($name:ident, $method:ident, $path:literal, $summary:literal, [$($body:tt)+], {$($options:tt)*}) => {
        policy_endpoint!($name, $method, $path, $summary, [$($body)+], {$($options)*}, {});
    };
    ($name:ident, $method:ident, $path:literal, $summary:literal, [$($body:tt)+], {$($options:tt)*}, {$($responses:tt)*}) => {
        #[utoipa::path(
            $method, path = $path, operation_id = stringify!($name), summary = $summary, $($options)*
            security((), ("token" = [])),
            responses(
                (status = 200, description = "Current state, or result of the operation", body = $($body)+),
                $($responses)*
                (status = 400, description = "Malformed request", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "Missing or unknown token", body = Problem, content_type = "application/problem+json"),
                (status = 403, description = "The token has the scope read; or no tokens are configured and the request comes from a browser", body = Problem, content_type = "application/problem+json"),
                (status = 404, description = "Unknown policy, or no change to remove", body = Problem, content_type = "application/problem+json"),
                (status = 408, description = "The request timed out", body = Problem, content_type = "application/problem+json"),
                (status = 413, description = "The body exceeds 64 KiB", body = Problem, content_type = "application/problem+json"),
                (status = 422, description = "A value is missing or out of range", body = Problem, content_type = "application/problem+json"),
                (status = 503, description = "The store is unreachable; nothing was changed, except if the detail states otherwise", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "only its description is used")]
        fn $name() {}
    };
}

/// Describes the endpoints that set and remove a change.
macro_rules! change_endpoints {
    ($put:ident, $remove:ident, $path:literal, $summary:literal, {$($params:tt)*}, {$($example:tt)*}) => {
        policy_endpoint!($put, put, $path, $summary, [AuditEntry], {
            params($($params)*), request_body(content = ChangeFields, example = json!({$($example)*})),
        });
        policy_endpoint!($remove, delete, $path, "Remove the change; the file applies again", [AuditEntry], { params($($params)*), });
    };
}

service_endpoint!(
    list_policies,
    "/v1/policies",
    "Effective policies and their decisions",
    [Vec<PolicyResponse>],
    {}
);
service_endpoint!(changes, "/v1/changes", "List all changes", [ChangesResponse], {});
service_endpoint!(audit, "/v1/audit", "Audit log, latest entry first", [AuditResponse], {});
service_endpoint!(live, "/v1/live", "Decisions, store state and heavy hitters", [LiveResponse], {
    params(("keys" = Option<usize>, Query, description = "Number of keys; 10 by default, at most 100")),
});

policy_endpoint!(policy, get, "/v1/policies/{policy}", "Effective policy and its decisions", [PolicyResponse], {
    params(("policy" = String, Path, example = "api")),
});
change_endpoints!(put_mode, remove_mode, "/v1/policies/{policy}/mode", "Set the mode: enforce, shadow or off", {
    ("policy" = String, Path, example = "api")
}, {"mode": "shadow", "for": "1h"});
change_endpoints!(put_quotas, remove_quotas, "/v1/policies/{policy}/quotas", "Set the quotas of a policy", {
    ("policy" = String, Path, example = "api")
}, {"quotas": ["200/1m"], "for": "1h"});
change_endpoints!(put_tier, remove_tier, "/v1/policies/{policy}/tiers/{tier}", "Set the quotas of a tier", {
    ("policy" = String, Path, example = "api"),
    ("tier" = String, Path, example = "premium", description = "A tier of the configuration file")
}, {"quotas": [{"limit": 2000, "window": "1m"}]});
change_endpoints!(put_key, remove_key, "/v1/policies/{policy}/keys/{key}", "Set the quotas or the tier of a key", {
    ("policy" = String, Path, example = "api"),
    ("key" = String, Path, example = "customer:42")
}, {"quotas": ["1000/1h"], "for": "3d", "note": "ticket 42"});
policy_endpoint!(key, get, "/v1/policies/{policy}/keys/{key}", "Counts and override of a key", [KeyResponse<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
});
policy_endpoint!(reset_policy, post, "/v1/policies/{policy}/reset", "Reset all keys", [PolicyReset], {
    params(("policy" = String, Path, example = "api")),
    request_body(content = Option<NoteFields>, example = json!({"note": "ticket 42"})),
}, {
    (status = 202, description = "The reset continues; the audit log has an entry when it completes", body = PolicyReset),
});
policy_endpoint!(reset, post, "/v1/policies/{policy}/keys/{key}/reset", "Reset a key", [KeyOperationResponse<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
    request_body(content = Option<RefundFields>, example = json!({"note": "ticket 42"})),
});
policy_endpoint!(refund, post, "/v1/policies/{policy}/keys/{key}/refund", "Refund a cost, at most the counted one", [KeyOperationResponse<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
    request_body(content = Option<RefundFields>, example = json!({"cost": 5, "note": "ticket 42"})),
});

policy_endpoint!(block, post, "/v1/policies/{policy}/keys/{key}/block", "Deny a key for a time", [KeyOperationResponse<'static>], {
    params(("policy" = String, Path, example = "api"), ("key" = String, Path, example = "customer:42"), ("tier" = Option<String>, Query)),
    request_body(content = BlockFields, example = json!({"for": "10m", "note": "ticket 42"})),
});

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Slidegate admin",
        description = "Effective policies, decisions and runtime changes of a running Slidegate.",
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
    fn modify(&self, document: &mut OpenApiDocument) {
        add_token_scheme(
            document,
            "A token of `admin.tokens` in the configuration; not required if none is configured",
        );
    }
}

pub(super) fn document() -> Response {
    static TEXT: LazyLock<Option<String>> = LazyLock::new(|| Document::openapi().to_json().ok());
    document_response(TEXT.as_deref())
}
