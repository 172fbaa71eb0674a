package io.github.tidegate.example;

import io.github.tidegate.client.Decision;
import io.github.tidegate.spring.RateLimit;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.stereotype.Service;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** A service that limits logins and searches by rules of the sample policy of `tidegate serve`. */
@SpringBootApplication
public class ExampleService {
    public static void main(String[] arguments) {
        SpringApplication.run(ExampleService.class, arguments);
    }

    @RestController
    static class Api {
        private final Accounts accounts;

        Api(Accounts accounts) {
            this.accounts = accounts;
        }

        @PostMapping("/login")
        public String login(@RequestParam("user") String user) {
            return accounts.login(user);
        }

        @GetMapping("/search")
        public String search(@RequestParam("user") String user, @RequestParam("q") String query) {
            return accounts.search(user, query);
        }
    }

    @Service
    static class Accounts {
        /** Denied calls are answered with 429 and problem details. */
        @RateLimit(rule = "login", key = "#user")
        public String login(String user) {
            return "welcome " + user + "\n";
        }

        /** A long query costs more; denied calls get a cached result. */
        @RateLimit(rule = "api", key = "#user", cost = "1 + #query.length() / 10",
            fallbackMethod = "cached")
        public String search(String user, String query) {
            return "results for " + query + "\n";
        }

        private String cached(String user, String query, Decision decision) {
            return "cached results for " + query + "\n";
        }
    }
}
