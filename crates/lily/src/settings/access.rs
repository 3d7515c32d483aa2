//! Who may use the server.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use lily_server::{ApiKeys, CrossOrigin};

use super::{API_KEY, variable};
use crate::cli::number;

/// Who may use the server, and for how long.
#[derive(Args, Debug)]
pub(crate) struct AccessArgs {
    /// Settings in TOML with the names of these flags, which go before it [default: lily/config.toml in $XDG_CONFIG_HOME
    /// or ~/.config, if it is there].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Key that requests must bear, as a bearer token or x-api-key; may be given several times. Other users of the machine
    /// can see flags: better $LILY_API_KEY or --api-key-file [default: $LILY_API_KEY, several separated by commas].
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub(crate) api_key: Vec<String>,
    /// File with more such keys, one a line; # begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Web site whose pages may use the server, as `https://chat.example`; may be given several times, * is every site.
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub(crate) cors_origin: Vec<String>,
    /// Name besides localhost by which clients call the server, if it binds loopback; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    pub(crate) allowed_host: Vec<String>,
    /// Seconds a request may take, its wait included; 0 is no limit.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = number(0, u64::MAX))]
    pub(crate) request_timeout: u64,
}

impl AccessArgs {
    /// All keys: those given, or else the environment's, and those of the file.
    pub(crate) fn keys(&self) -> Result<ApiKeys> {
        let mut keys = self.given_keys()?;
        let of_flags = ApiKeys::new(keys.clone()).with_context(|| format!("--api-key or ${API_KEY}"))?;
        let Some(path) = &self.api_key_file else { return Ok(of_flags) };
        keys.extend(read_keys(path)?);
        ApiKeys::new(keys).with_context(|| format!("--api-key-file {}", path.display()))
    }

    /// Those given, or else the environment's.
    fn given_keys(&self) -> Result<Vec<String>> {
        let Some(variable) = variable(API_KEY).filter(|_| self.api_key.is_empty()) else {
            return Ok(self.api_key.clone());
        };
        let text = variable.into_string().ok().with_context(|| format!("${API_KEY} is not UTF-8"))?;
        Ok(text.split(',').map(|key| key.trim().to_owned()).collect())
    }

    /// One of the keys, for asking a server that was started with the same settings.
    pub(crate) fn first_key(&self) -> Option<String> {
        let of_file = || self.api_key_file.as_deref().and_then(|path| read_keys(path).ok());
        self.given_keys().ok().filter(|keys| !keys.is_empty()).or_else(of_file)?.into_iter().next()
    }

    /// Which pages are let in by a server that was told to bind `host` and has bound `address`.
    pub(crate) fn cross_origin(&self, host: &str, address: IpAddr) -> Result<CrossOrigin> {
        let mut names = self.allowed_host.clone();
        // On other addresses a server is reached by names that it need not know, unless it is told them.
        let is_checked = address.is_loopback() || !names.is_empty();
        names.push(host.to_owned());
        CrossOrigin::new(&self.cors_origin, is_checked.then_some(names)).context("--cors-origin")
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        (self.request_timeout > 0).then(|| Duration::from_secs(self.request_timeout))
    }
}

fn read_keys(path: &Path) -> Result<Vec<String>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("--api-key-file {}: cannot be read", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    if keys.is_empty() {
        bail!("--api-key-file {}: it holds no key", path.display());
    }
    Ok(keys)
}

/// As browsers send it: a scheme and an authority, nothing behind.
fn origin(text: &str) -> Result<String, String> {
    let authority = text.split_once("://").map(|(_, authority)| authority);
    let sound = |authority: &str| !authority.is_empty() && authority.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
    if text == "*" || authority.is_some_and(sound) {
        return Ok(text.to_owned());
    }
    Err("expected * or an origin, as https://chat.example or http://localhost:3000, without a path".into())
}

/// As clients have it in their addresses, without what stands around it there: no request would name that.
fn host_name(text: &str) -> Result<String, String> {
    let has_port = || {
        text.rsplit_once(':')
            .is_some_and(|(name, port)| !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if text.is_empty() || text.contains(|c: char| c == '/' || c.is_whitespace()) || has_port() {
        return Err("expected a name, as lily.home, without a scheme, a port or a path".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_host_is_a_name_and_no_address_of_a_page() {
        for name in ["lily.home", "10.0.0.7", "[::1]", "::1", "host.docker.internal"] {
            assert_eq!(super::host_name(name), Ok(name.to_owned()));
        }
        for wrong in ["", "http://lily.home", "lily.home:8080", "lily.home/v1", "two words"] {
            assert!(super::host_name(wrong).is_err(), "{wrong}");
        }
    }

    use std::net::IpAddr;

    use clap::Parser;

    use super::{AccessArgs, origin};

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        access: AccessArgs,
    }

    fn access(args: &[&str]) -> AccessArgs {
        Alone::parse_from(["lily"].iter().chain(args)).access
    }

    #[test]
    fn keys_come_from_flags_and_a_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("keys");
        let file = path.to_str().expect("UTF-8");
        std::fs::write(&path, "# mine\n  third \n\nfourth\n").expect("a file");
        let keys = |args: &[&str]| access(args).keys().map(|keys| format!("{keys:?}")).map_err(|e| format!("{e:#}"));
        assert_eq!(keys(&["--api-key", "a,b", "--api-key", "c"]), Ok("ApiKeys(3)".into()));
        assert_eq!(keys(&["--api-key", "a", "--api-key-file", file]), Ok("ApiKeys(3)".into()));
        std::fs::write(&path, "# none\n").expect("a file");
        assert!(keys(&["--api-key-file", file]).expect_err("no key").contains("holds no key"));
        std::fs::write(&path, "two words\n").expect("a file");
        assert!(keys(&["--api-key-file", file]).expect_err("a bad key").contains(file));
        assert!(keys(&["--api-key", "two words"]).expect_err("a bad key").contains("--api-key"));
        assert!(keys(&["--api-key-file", "/nowhere/at/all"]).expect_err("no file").contains("cannot be read"));
    }

    #[test]
    fn the_host_header_is_checked_on_loopback() {
        let hosts = |args: &[&str], host: &str, address: &str| {
            let address: IpAddr = address.parse().expect("an address");
            access(args).cross_origin(host, address).expect("sound origins").hosts
        };
        assert_eq!(hosts(&[], "127.0.0.1", "127.0.0.1"), Some(vec!["127.0.0.1".into()]));
        let named = Some(vec!["lily.home".to_owned(), "box".to_owned()]);
        assert_eq!(hosts(&["--allowed-host", "lily.home"], "box", "::1"), named);
        assert_eq!(hosts(&[], "0.0.0.0", "0.0.0.0"), None);
        assert_eq!(hosts(&["--allowed-host", "lily.home"], "box", "10.0.0.1"), named);
    }

    #[test]
    fn origins_have_no_path() {
        for good in ["*", "https://chat.example", "http://localhost:3000", "app://notes"] {
            assert_eq!(origin(good), Ok(good.to_owned()));
        }
        for bad in ["", "chat.example", "https://", "https://chat.example/", "https://a b", "https://é"] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }
}
