//! Envoy's messages, generated into `proto/` by `cargo xtask protos`.

#![allow(unreachable_pub, reason = "generated code")]

/// `envoy`
pub mod envoy {
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
        /// `envoy.service.discovery`
        pub mod discovery {
            /// `envoy.service.discovery.v3`
            pub mod v3 {
                include!("proto/envoy.service.discovery.v3.rs");
            }
        }
        /// `envoy.service.rate_limit_quota`
        pub mod rate_limit_quota {
            /// `envoy.service.rate_limit_quota.v3`
            pub mod v3 {
                include!("proto/envoy.service.rate_limit_quota.v3.rs");
            }
        }
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
}

/// `google`
pub mod google {
    /// `google.rpc`
    pub mod rpc {
        include!("proto/google.rpc.rs");
    }
}

/// `ratelimit`
pub mod ratelimit {
    /// `ratelimit.config`
    pub mod config {
        /// `ratelimit.config.ratelimit`
        pub mod ratelimit {
            /// `ratelimit.config.ratelimit.v3`
            pub mod v3 {
                include!("proto/ratelimit.config.ratelimit.v3.rs");
            }
        }
    }
}

pub use envoy::config::core::v3::{HeaderValue, Node};
pub use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
pub use envoy::service;
pub use envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
pub(crate) use envoy::service::rate_limit_quota::v3::BucketId;
pub use envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
pub use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub(crate) use envoy::r#type::v3::rate_limit_strategy as strategy;
pub(crate) use envoy::r#type::v3::{RateLimitStrategy, TokenBucket};

/// The encoded file descriptors, for reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");
