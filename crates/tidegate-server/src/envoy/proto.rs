//! Envoy's messages, as `cargo xtask protos` makes them of the files in `proto/`.

/// Parts of Envoy's own configuration.
pub mod config {
    /// What all parts of it have in common.
    pub mod core {
        /// The third version.
        pub mod v3 {
            include!("proto/envoy.config.core.v3.rs");
        }
    }
}

/// What filters speak in.
pub mod extensions {
    /// What several of them have in common.
    pub mod common {
        /// Those that limit rates.
        pub mod ratelimit {
            /// The third version.
            pub mod v3 {
                include!("proto/envoy.extensions.common.ratelimit.v3.rs");
            }
        }
    }
}

/// Services that Envoy asks.
pub mod service {
    /// The one that limits rates.
    pub mod ratelimit {
        /// The third version.
        pub mod v3 {
            include!("proto/envoy.service.ratelimit.v3.rs");
        }
    }
}

/// Plain types.
pub mod r#type {
    /// The third version.
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

/// The files themselves, for whoever asks what is spoken here.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");
