services:
  web:
    image: nginx
