//! Envoy's messages, generated from `proto/` by `tests/generated.rs`.
#![allow(clippy::all, clippy::pedantic, missing_docs, unused_qualifications)]

pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                include!("generated/envoy.config.core.v3.rs");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                include!("generated/envoy.service.ratelimit.v3.rs");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            include!("generated/envoy.r#type.v3.rs");
        }
    }
}

pub use self::envoy::config::core::v3::HeaderValue;
pub use self::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
pub use self::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response, rate_limit_service_server,
};
pub use self::envoy::r#type::v3::RateLimitUnit;

/// Descriptors of the messages, for reflection.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
