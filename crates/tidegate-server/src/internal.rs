//! Items that the command line, tests and fuzz targets use. Hidden from the documentation and not
//! covered by semantic versioning.

pub mod chart {
    pub use crate::chart::svg;
}
pub mod check {
    pub use crate::check::{
        ActivePolicy, AdhocLimits, CheckError, CheckService, ModelUsage, Operation, QuantityRange,
        ReserveOptions, SettleAction, Throttle, UsageCosts,
    };
    pub mod explain {
        pub use crate::check::explain::{DescribedRequest, Explanation, explain, explain_request};
    }
}
pub mod console {
    pub use crate::console::{ConsoleContext, ConsoleState, CookieSecurity, router};
}
pub mod observe {
    pub mod logging {
        pub use crate::observe::logging::{LogFormat, init, init_at};
    }
    pub mod metrics {
        pub use crate::observe::metrics::{ListenerKind, Metrics};
    }
    pub mod otlp {
        pub use crate::observe::otlp::OtlpOptions;
        pub mod collector {
            pub use crate::observe::otlp::collector::Collector;
        }
        pub mod sampling {
            pub use crate::observe::otlp::sampling::SamplingRatio;
        }
    }
    pub mod systemd {
        pub use crate::observe::systemd::{NotifyState, notify};
    }
    pub mod traffic {
        pub use crate::observe::traffic::{TrafficSnapshot, TrafficStats};
        pub mod snapshot {
            pub use crate::observe::traffic::snapshot::{
                CallRates, CallSeries, CallStats, CallTotals, DenialKind, DeniedBy, HotKey,
                HotKeyState, RecentDenial, RuleTraffic,
            };
        }
    }
}
pub mod policy {
    pub use crate::policy::{
        Actor, CountsOnDelete, EnvoyOrigin, EnvoySource, LoadedSources, PolicyManager,
        PolicySource, PolicySources, PutCondition, SAMPLE,
    };
    pub mod files {
        pub use crate::policy::files::RecordingReader;
    }
    pub mod watcher {
        pub use crate::policy::watcher::reload;
    }
}
pub mod readiness {
    pub use crate::readiness::Readiness;
}
pub mod shutdown {
    pub use crate::shutdown::{ShutdownTrigger, channel};
}
pub mod store {
    pub use crate::store::{Store, StoreError};
}
pub mod text {
    pub mod escape {
        pub use crate::text::escape::{display_key, is_hidden};
    }
    pub mod format {
        pub use crate::text::format::{fraction, number, percent, shortened};
    }
}
pub mod tls {
    pub use crate::tls::{ServerTls, certificates, key, provider, roots};
}
pub mod transport {
    pub mod allowed_hosts {
        pub use crate::transport::allowed_hosts::{AllowedHosts, HostName};
    }
    pub mod auth {
        pub use crate::transport::auth::AuthTokens;
    }
    pub mod envoy {
        pub mod error {
            pub use crate::transport::envoy::error::EnvoyError;
        }
        pub mod grpc {
            pub use crate::transport::envoy::grpc::{GrpcServices, MAX_MESSAGE};
        }
        pub mod json {
            pub use crate::transport::envoy::json::RateLimitRequestBody;
        }
        pub mod proto {
            pub use crate::transport::envoy::proto::{
                Code, DescriptorStatus, DiscoveryRequest, DiscoveryResponse, Entry, HeaderValue,
                RateLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
                RateLimitResponse, Unit, ratelimit, service,
            };
        }
        pub mod service {
            pub use crate::transport::envoy::service::EnvoyService;
        }
        pub mod settings {
            pub use crate::transport::envoy::settings::{EnvoySettings, ResponseHeaders};
        }
    }
    pub mod http {
        pub use crate::transport::http::{
            AppContext, AppState, decision_json, inspection_json, live_example, router,
        };
    }
    pub mod listener {
        pub use crate::transport::listener::{ListenerOptions, Timeouts};
        pub mod http_connection {
            pub use crate::transport::listener::http_connection::serve;
        }
        pub mod open_files {
            pub use crate::transport::listener::open_files::max_connections;
        }
        pub mod panics {
            pub use crate::transport::listener::panics::log_panics;
        }
    }
    pub mod resp {
        pub mod connection {
            pub use crate::transport::resp::connection::serve;
        }
        pub mod frame {
            pub use crate::transport::resp::frame::{Caps, Command, Parser, ProtocolError};
        }
        pub mod reply {
            pub use crate::transport::resp::reply::{ReplyEncoder, RespVersion};
        }
        pub mod testing {
            pub use crate::transport::resp::testing::replies;
        }
    }
}
