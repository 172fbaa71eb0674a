package io.github.tidegate.it;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.context.ConfigurableApplicationContext;

/** Starts applications and calls them. */
final class Applications {
    private static final HttpClient HTTP = HttpClient.newHttpClient();

    private Applications() {}

    /** An application of these configurations and properties ({@code name=value}). */
    static ConfigurableApplicationContext start(WebApplicationType type, String tidegateUrl,
            Class<?> configuration, String... properties) {
        SpringApplication application = new SpringApplication(configuration);
        application.setWebApplicationType(type);
        List<String> arguments = new ArrayList<>(List.of("--server.port=0",
            "--tidegate.url=" + tidegateUrl, "--tidegate.deadline=5s",
            "--spring.main.banner-mode=off", "--logging.level.root=warn"));
        if (type != WebApplicationType.REACTIVE) {
            arguments.add("--spring.cloud.gateway.server.webflux.enabled=false");
        }
        for (String property : properties) {
            arguments.add("--" + property);
        }
        return application.run(arguments.toArray(String[]::new));
    }

    static HttpResponse<String> get(ConfigurableApplicationContext application, String path,
            String... headers) throws IOException, InterruptedException {
        String port = application.getEnvironment().getProperty("local.server.port");
        HttpRequest.Builder request =
            HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path));
        if (headers.length > 0) {
            request.headers(headers);
        }
        return HTTP.send(request.build(), BodyHandlers.ofString());
    }

    static String rootCause(Throwable failure) {
        Throwable cause = failure;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return String.valueOf(cause.getMessage());
    }

    static String header(HttpResponse<?> response, String name) {
        return response.headers().firstValue(name).orElse(null);
    }
}
