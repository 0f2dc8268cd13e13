//! `metrics`: serves metrics.

use adit_openvpn::config::Options;
use adit_runtime::fault::Fault;
use adit_runtime::metrics::{Config, Names};

/// Returns where the configuration wants metrics to be served.
///
/// # Errors
/// The address is not valid, or is not local.
pub(crate) fn metrics(options: &Options) -> Result<Option<Config>, Fault> {
    let Some(metrics) = &options.metrics else { return Ok(None) };
    let names = if metrics.compatible { Names::Openvpn } else { Names::Adit };
    let config = metrics
        .listen
        .parse()
        .and_then(|listen| Config::checked(listen, Vec::new(), None, names))
        .map_err(|wrong| Fault::operator(format!("metrics: {wrong}")))?;
    Ok(Some(config))
}

#[cfg(test)]
mod tests {
    use adit_openvpn::config::Metrics;

    use super::*;

    #[test]
    fn the_directive_serves_this_machine_only() {
        let of = |listen: &str| {
            let metrics = Metrics { listen: listen.into(), compatible: true };
            super::metrics(&Options { metrics: Some(metrics), ..Options::default() })
        };
        let config = of("127.0.0.1:9176").unwrap().unwrap();
        assert_eq!(
            (config.listen.to_string().as_str(), config.names),
            ("127.0.0.1:9176", Names::Openvpn)
        );
        let open = of("0.0.0.0:9176").unwrap_err().to_string();
        assert!(open.starts_with("metrics: ") && open.contains("127.0.0.1:9176"), "{open}");
        assert!(of("9176").is_err());
        assert_eq!(metrics(&Options::default()), Ok(None));
    }
}
