//! Envoy's messages, generated into `proto/` by `cargo xtask protos`.

#![allow(unreachable_pub, reason = "generated code")]

/// `envoy.config`
pub mod config {
    /// `envoy.config.core`
    pub mod core {
        /// `envoy.config.core.v3`
        pub mod v3 {
            include!("proto/envoy.config.core.v3.rs");
        }
    }
}

/// `envoy.extensions`
pub mod extensions {
    /// `envoy.extensions.common`
    pub mod common {
        /// `envoy.extensions.common.ratelimit`
        pub mod ratelimit {
            /// `envoy.extensions.common.ratelimit.v3`
            pub mod v3 {
                include!("proto/envoy.extensions.common.ratelimit.v3.rs");
            }
        }
    }
}

/// `envoy.service`
pub mod service {
    /// `envoy.service.ratelimit`
    pub mod ratelimit {
        /// `envoy.service.ratelimit.v3`
        pub mod v3 {
            include!("proto/envoy.service.ratelimit.v3.rs");
        }
    }
}

/// `envoy.type`
pub mod r#type {
    /// `envoy.type.v3`
    pub mod v3 {
        include!("proto/envoy.r#type.v3.rs");
    }
}

pub use config::core::v3::HeaderValue;
pub use extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
pub use service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
pub use service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// The encoded file descriptors, for reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");
